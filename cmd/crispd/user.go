package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/internal/flock"
	"github.com/crisp-cri/crisp/internal/procstat"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/internal/unixsock"
	"github.com/crisp-cri/crisp/internal/userns"
)

// An ordinary user's crispd is root of a user namespace. A process that does nothing, the keeper, has
// it, with a mount and a cgroup namespace: it outlives crispd, as the executor and containers do, which
// the next crispd must find there. crispd itself is executed in there by nsenter(1), in place of the
// one that the user has started: so there is one process to signal and to watch, and none in between.
//
// RootlessKit would do the same with a parent and a child that live as long as crispd, and end
// containers with it; its network drivers are for a later step.

// keeperEnv is set for a crispd that an ordinary user has started, to the PID of its keeper.
const keeperEnv = "CRISP_KEEPER"

// runtimeDir is the variable with the user's directory that does not outlive a reboot.
const runtimeDir = "XDG_RUNTIME_DIR"

// ofUser reports whether an ordinary user has started this crispd.
func ofUser() bool { return os.Geteuid() != 0 || os.Getenv(keeperEnv) != "" && userns.Own() != nil }

// userDefaults sets the places of an ordinary user's files in src (XDG Base Directory Specification).
func userDefaults(src *config.Source) error {
	home, err := os.UserHomeDir()
	if err != nil {
		return fmt.Errorf("find the user's directories: %w", err)
	}
	in := func(name, other string) string {
		if dir := os.Getenv(name); filepath.IsAbs(dir) {
			return filepath.Join(dir, "crisp")
		}
		return filepath.Join(other, "crisp")
	}
	src.Root = in("XDG_DATA_HOME", filepath.Join(home, ".local/share"))
	src.Dir = in("XDG_CONFIG_HOME", filepath.Join(home, ".config"))
	src.State = in(runtimeDir, filepath.Join("/run/user", strconv.Itoa(os.Getuid())))
	return nil
}

// enterUser executes this program again, as root of the user namespace of the instance with that state
// directory. If there is none yet, it makes one: to last, or until this process ends.
func enterUser(state string, lasting bool) (err error) {
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return fmt.Errorf("enter a user namespace: %w", err)
	}
	runtime.LockOSThread() // a keeper that does not last ends with its parent's thread
	pid, err := keeper(state, lasting)
	if err != nil {
		return fmt.Errorf("make a user namespace: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	args := append([]string{"nsenter", "-t", strconv.Itoa(pid), "-U", "-m", "-C", "--preserve-credentials", "--wd=" + wd, self}, os.Args[1:]...)
	env := append(os.Environ(), keeperEnv+"="+strconv.Itoa(pid))
	if os.Getenv(runtimeDir) == "" { // in there, the user has another number
		env = append(env, runtimeDir+"="+filepath.Join("/run/user", strconv.Itoa(os.Getuid())))
	}
	return os.NewSyscallError("execve", unix.Exec(nsenter, args, env))
}

// keeper returns the PID of the keeper of the instance with that state directory, whose file "keeper" has
// it; if there is none, it starts one.
func keeper(state string, lasting bool) (pid int, err error) {
	path := filepath.Join(state, "keeper")
	if !lasting && !exists(path) {
		return makeKeeper(nil)
	}
	if err := os.MkdirAll(state, 0o700); err != nil {
		return 0, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := flock.Lock(ctx, f); err != nil {
		return 0, fmt.Errorf("lock %s: %w", path, err)
	}
	if pid, err = keptBy(f); pid != 0 || err != nil {
		return pid, err
	}
	if pid = listener(filepath.Join(state, "executor.sock")); pid != 0 { // the keeper was killed
		return pid, nil
	}
	if !lasting {
		return makeKeeper(nil)
	}
	return makeKeeper(f)
}

// listener returns the PID of the process that listens on a socket, 0 if none does.
func listener(path string) int {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return 0
	}
	defer conn.Close()
	cred, err := unixsock.Peer(conn)
	if err != nil {
		return 0
	}
	return int(cred.Pid)
}

// keptBy returns the PID of the keeper that f names; 0 if there is none, or not any more.
func keptBy(f *os.File) (pid int, err error) {
	data, err := io.ReadAll(io.LimitReader(f, 100))
	if err != nil {
		return 0, err
	}
	var started uint64
	if n, _ := fmt.Sscan(string(data), &pid, &started); n < 2 {
		return 0, nil
	}
	if stat, err := procstat.Read(pid); err != nil || stat.Ended() || stat.StartTime != started {
		return 0, nil
	}
	return pid, nil
}

// makeKeeper starts a keeper and names it in f; without f it ends with this thread.
func makeKeeper(f *os.File) (pid int, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)
	cmd := exec.Command(beside("crisp-podinit")) // sleeps, in 8 kB
	cmd.Args, cmd.Env, cmd.Dir = []string{"crisp-keeper"}, []string{}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP, Setsid: true}
	if f == nil {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	steps.Add("keeper", func() error { return errors.Join(cmd.Process.Kill(), ignore(cmd.Wait())) })
	pid = cmd.Process.Pid
	if err := mapIDs(pid); err != nil {
		return 0, err
	}
	if f == nil {
		return pid, nil
	}
	stat, err := procstat.Read(pid)
	if err != nil {
		return 0, err
	}
	if err := f.Truncate(0); err != nil {
		return 0, err
	}
	_, err = f.WriteAt(fmt.Appendf(nil, "%d %d\n", pid, stat.StartTime), 0)
	return pid, err
}

// ignore drops the status of a process that was killed.
func ignore(err error) error {
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil
	}
	return err
}

// mapIDs maps the IDs of a new user namespace: the user's own to root, and those of subuid(5) and
// subgid(5) after it, if there are both and newuidmap(1).
func mapIDs(pid int) error {
	at := func(name string) string { return fmt.Sprintf("/proc/%d/%s", pid, name) }
	users, groups := ranges("/etc/subuid"), ranges("/etc/subgid")
	_, uerr := exec.LookPath("newuidmap")
	_, gerr := exec.LookPath("newgidmap")
	if len(users) == 0 || len(groups) == 0 || uerr != nil || gerr != nil {
		return errors.Join(os.WriteFile(at("setgroups"), []byte("deny"), 0), // else the kernel accepts no map of groups
			os.WriteFile(at("uid_map"), fmt.Append(nil, "0 ", os.Getuid(), " 1"), 0),
			os.WriteFile(at("gid_map"), fmt.Append(nil, "0 ", os.Getgid(), " 1"), 0))
	}
	for _, m := range []struct {
		program string
		own     int
		more    [][2]string
	}{{"newuidmap", os.Getuid(), users}, {"newgidmap", os.Getgid(), groups}} {
		args, next := []string{strconv.Itoa(pid), "0", strconv.Itoa(m.own), "1"}, 1
		for _, r := range m.more {
			n, err := strconv.Atoi(r[1])
			if err != nil {
				return fmt.Errorf("%s: count %q of IDs: %w", m.program, r[1], err)
			}
			args = append(args, strconv.Itoa(next), r[0], r[1])
			next += n
		}
		if out, err := exec.Command(m.program, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", m.program, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// maxRanges bounds the ranges of a user: the kernel takes 340 in a map (user_namespaces(7)).
const maxRanges = 300

// ranges returns the user's ranges in a file in the form of subuid(5), each as its start and its count.
func ranges(file string) (list [][2]string) {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	id := strconv.Itoa(os.Getuid())
	name := id
	if u, err := user.LookupId(id); err == nil {
		name = u.Username
	}
	for lines := bufio.NewScanner(f); lines.Scan() && len(list) < maxRanges; {
		field := strings.Split(strings.TrimSpace(lines.Text()), ":")
		if len(field) == 3 && (field[0] == name || field[0] == id) {
			list = append(list, [2]string{field[1], field[2]})
		}
	}
	return list
}

// endKeeper ends the keeper of an instance that is wiped.
func endKeeper() error {
	pid, err := strconv.Atoi(os.Getenv(keeperEnv))
	if err != nil {
		return nil // root's
	}
	if stat, err := procstat.Read(pid); err != nil || stat.Name != "crisp-podinit" {
		return nil
	}
	return os.NewSyscallError("kill", unix.Kill(pid, unix.SIGKILL))
}
