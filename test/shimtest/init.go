package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// initEnv has the parameters of a process that becomes one of a container.
const initEnv = "SHIMTEST_INIT"

// Arguments of a process that executes nothing: a module, and the sandbox of one.
const (
	moduleArg  = "\x00module"
	nothingArg = "\x00nothing"
)

type initParams struct {
	Root    string
	Process process
	Rootfs  []mount // that the shim mounts at Root
	Mounts  []mount
	Network string // the path of a namespace; "" = the shim's
	Join    int    // the PID of the container's own process, for an exec
}

// runInit makes this process one of a container; it does not return.
func runInit() {
	runtime.LockOSThread()
	var p initParams
	err := json.Unmarshal([]byte(os.Getenv(initEnv)), &p)
	if err == nil {
		err = p.enter()
	}
	entered := os.NewFile(4, "entered") // the shim waits for its end
	if err != nil {
		fmt.Fprint(entered, err)
	}
	entered.Close()
	if n, rerr := os.NewFile(3, "gate").Read(make([]byte, 1)); n != 1 || rerr != nil {
		os.Exit(255) // the shim has gone
	}
	unix.CloseOnExec(3)
	if err == nil {
		err = p.execute()
	}
	fmt.Fprintln(os.Stderr, "shimtest:", err)
	os.Exit(127)
}

// enter joins the network, and makes the container's files all that there is.
func (p initParams) enter() error {
	network, root := p.Network, p.Root
	if p.Join != 0 {
		network, root = fmt.Sprintf("/proc/%d/ns/net", p.Join), fmt.Sprintf("/proc/%d/root", p.Join)
	}
	if network != "" {
		ns, err := os.Open(network)
		if err != nil {
			return err
		}
		defer ns.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("join %s: %w", network, err)
		}
	}
	if p.Join == 0 {
		if err := p.mountAll(); err != nil {
			return err
		}
	}
	if err := unix.Chroot(root); err != nil {
		return fmt.Errorf("chroot %s: %w", root, err)
	}
	return unix.Chdir("/")
}

// mountAll mounts what the container sees, in the mount namespace of this process.
func (p initParams) mountAll() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	for _, m := range p.Rootfs {
		if err := m.mount(p.Root); err != nil {
			return err
		}
	}
	for _, m := range p.Mounts {
		target := filepath.Join(p.Root, m.Destination)
		if err := m.makeTarget(target); err != nil {
			continue // a root file system that cannot be written to
		}
		if err := m.mount(target); err != nil {
			return err
		}
	}
	return nil
}

func (m mount) makeTarget(target string) error {
	if _, err := os.Stat(target); err == nil {
		return nil
	}
	if info, err := os.Stat(m.Source); m.isBind() && err == nil && !info.IsDir() {
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		return os.WriteFile(target, nil, 0o644)
	}
	return os.MkdirAll(target, 0o755)
}

func (m mount) isBind() bool {
	return m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}

// mount mounts what there is in every kernel; cgroups and the like are left out.
func (m mount) mount(target string) (err error) {
	var data []string
	for _, o := range m.Options {
		if strings.Contains(o, "=") {
			data = append(data, o)
		}
	}
	switch {
	case m.isBind():
		err = unix.Mount(m.Source, target, "", unix.MS_BIND|unix.MS_REC, "")
		if err == nil && slices.Contains(m.Options, "ro") {
			err = unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
		}
	case m.Type == "overlay", m.Type == "tmpfs":
		err = unix.Mount(m.Source, target, m.Type, 0, strings.Join(data, ","))
	case m.Type == "proc":
		err = unix.Mount("proc", target, "proc", 0, "")
	}
	if err != nil {
		return fmt.Errorf("mount %s at %s: %w", m.Source, target, err)
	}
	return nil
}

// execute becomes the program.
func (p initParams) execute() error {
	_ = os.Unsetenv(initEnv)
	proc := p.Process
	switch proc.Args[0] {
	case nothingArg:
		unended := make(chan os.Signal, 1)
		signal.Notify(unended, syscall.SIGTERM)
		<-unended
		os.Exit(int(syscall.SIGTERM))
	case moduleArg:
		runModule(proc)
	}
	if err := unix.Chdir(proc.Cwd); err != nil {
		return fmt.Errorf("chdir %s: %w", proc.Cwd, err)
	}
	os.Clearenv()
	for _, v := range proc.Env {
		if name, value, ok := strings.Cut(v, "="); ok {
			_ = os.Setenv(name, value)
		}
	}
	path, err := exec.LookPath(proc.Args[0])
	if err != nil {
		return err
	}
	groups := make([]int, len(proc.User.AdditionalGids))
	for i, g := range proc.User.AdditionalGids {
		groups[i] = int(g)
	}
	if err := syscall.Setgroups(groups); err != nil {
		return err
	}
	if err := syscall.Setresgid(int(proc.User.GID), int(proc.User.GID), int(proc.User.GID)); err != nil {
		return err
	}
	if err := syscall.Setresuid(int(proc.User.UID), int(proc.User.UID), int(proc.User.UID)); err != nil {
		return err
	}
	return syscall.Exec(path, proc.Args, proc.Env)
}
