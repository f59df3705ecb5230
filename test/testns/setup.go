package testns

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/test/noleaks"
)

// join puts PID 1 into the test's cgroups and their namespace. Until the next execve(2)
// a namespace belongs to a thread only, so this ends with one.
func join() {
	runtime.LockOSThread()
	err := func() error {
		for dir := range strings.SplitSeq(os.Getenv(cgroupsEnv), ":") {
			if dir == "" {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
				return err
			}
		}
		if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		os.Setenv(role, roleInit)
		return unix.Exec("/proc/self/exe", os.Args, os.Environ())
	}()
	fmt.Fprintln(os.Stderr, "enter the test's cgroups:", err)
	os.Exit(1)
}

// initMain is PID 1 of a test. It returns the exit code.
func initMain() int {
	if err := setup(); err != nil {
		fmt.Fprintln(os.Stderr, "set the test's namespaces up:", err)
		return 1
	}
	before, err := noleaks.TakeAll()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	os.Setenv(role, roleRun)
	pid, err := syscall.ForkExec("/proc/self/exe", os.Args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var status syscall.WaitStatus
	for { // and reap what was orphaned
		var ws syscall.WaitStatus
		got, err := syscall.Wait4(-1, &ws, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "wait:", err)
			return 1
		}
		if got == pid {
			status = ws
			break
		}
	}
	switch {
	case status.Signaled():
		fmt.Println("the test's process ended by", status.Signal())
		return 1
	case status.ExitStatus() != 0:
		return status.ExitStatus() // its leftovers are to be expected
	}
	return leftBehind(before)
}

// leftBehind reports what the test has left. Some things vanish a moment after the call
// that ended them returned, such as a veth when the kernel destroys its namespace.
func leftBehind(before noleaks.Snapshot) int {
	var left []string
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		for {
			if got, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); got <= 0 || err != nil {
				break
			}
		}
		now, err := noleaks.TakeAll()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if left = now.Since(before); len(left) == 0 {
			return 0
		}
		if time.Now().After(deadline) {
			break
		}
	}
	fmt.Printf("left behind:\n      %s\n", strings.Join(left, "\n      "))
	return 1
}

// setup makes the namespaces look like a machine.
func setup() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make / private: %w", err)
	}
	// The machine's cgroup hierarchies, while /sys still shows them.
	all, err := hierarchies()
	if err != nil {
		return err
	}
	mount := func(source, target, kind, options string) error {
		if err := unix.Mount(source, target, kind, 0, options); err != nil {
			return fmt.Errorf("mount %s at %s: %w", kind, target, err)
		}
		return nil
	}
	// Cgroups in another program's container are not this machine's.
	for _, h := range all {
		if !strings.HasPrefix(h.dir, "/sys/") {
			err := unix.Unmount(h.dir, unix.MNT_DETACH)
			if err != nil && err != unix.ENOENT && err != unix.EINVAL { // it may have ended meanwhile
				return fmt.Errorf("unmount %s: %w", h.dir, err)
			}
		}
	}
	all = slices.DeleteFunc(all, func(h hierarchy) bool { return !strings.HasPrefix(h.dir, "/sys/fs/cgroup") })
	tmpfs := len(all) > 0 && all[0].dir != "/sys/fs/cgroup"
	// Mount those of this PID and network namespace. File systems that are only mounted
	// over would still be listed in mountinfo, where programs look for cgroups.
	for _, dir := range []string{"/sys", "/proc"} {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
	if err := mount("proc", "/proc", "proc", ""); err != nil {
		return err
	}
	if err := mount("sysfs", "/sys", "sysfs", ""); err != nil {
		return err
	}
	if err := mount("tmpfs", "/run", "tmpfs", "mode=755"); err != nil {
		return err
	}
	if tmpfs {
		if err := mount("tmpfs", "/sys/fs/cgroup", "tmpfs", "mode=755"); err != nil {
			return err
		}
	}
	for _, h := range all {
		if err := os.MkdirAll(h.dir, 0o755); err != nil {
			return err
		}
		if err := mount(h.kind, h.dir, h.kind, h.options); err != nil {
			return err
		}
	}
	return network()
}

// inNetwork runs this program again in a network namespace, and returns its exit code.
func inNetwork() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), role+"="+roleNetwork)
	// The mounts of the namespaces that tests make go with a mount namespace.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, "run the tests in a network of their own:", err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

// ownNetwork sets up the network namespace that inNetwork made.
func ownNetwork() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make / private: %w", err)
	}
	return network()
}

// network brings up the loopback device, and an uplink with a default route, as a node
// has; packets sent there are lost.
func network() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	far, err := elsewhere()
	if err != nil {
		return fmt.Errorf("the uplink's far end: %w", err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	uplink := &netlink.Veth{LinkAttrs: attrs, PeerName: "far", PeerNamespace: netlink.NsFd(far)}
	if err := netlink.LinkAdd(uplink); err != nil {
		return fmt.Errorf("make the uplink: %w", err)
	}
	there, err := netlink.NewHandleAt(far)
	if err != nil {
		return err
	}
	defer there.Close()
	end, err := there.LinkByName("far")
	if err != nil {
		return err
	}
	if err := there.LinkSetUp(end); err != nil {
		return fmt.Errorf("the uplink's far end: %w", err)
	}
	for _, a := range []string{"198.18.0.2/15", "fd00:198:18::2/64"} {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		addr.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(uplink, addr); err != nil {
			return fmt.Errorf("uplink's address %s: %w", a, err)
		}
	}
	// A link-local address would appear a moment later, as if a test had left it.
	if err := netlink.LinkSetIP6AddrGenMode(uplink, nl.IN6_ADDR_GEN_MODE_NONE); err != nil {
		return fmt.Errorf("uplink: %w", err)
	}
	if err := netlink.LinkSetUp(uplink); err != nil {
		return fmt.Errorf("uplink: %w", err)
	}
	for _, everything := range []*net.IPNet{{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, {IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}} {
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: uplink.Attrs().Index, Dst: everything}); err != nil {
			return fmt.Errorf("default route: %w", err)
		}
	}
	return nil
}

// elsewhere makes a network namespace that lives as long as this process.
func elsewhere() (netns.NsHandle, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := netns.Get()
	if err != nil {
		return -1, err
	}
	defer here.Close()
	far, err := netns.New()
	if err != nil {
		return -1, err
	}
	return far, netns.Set(here)
}
