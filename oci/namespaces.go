package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/flock"
	hostkernel "github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/thread"
)

// makeNamespaces creates the namespaces of p, sets them up and pins them.
//
// unshare(2) changes only the calling thread, which ends here: from then on only the pins keep
// the namespaces.
func makeNamespaces(p Pins) error {
	if p.IDs != nil {
		if err := dropOrphans(p); err != nil {
			return err
		}
	}
	var flags int
	var kinds []string
	for _, ns := range []struct {
		wanted bool
		flag   int
		kind   string
	}{
		{p.IDs != nil, unix.CLONE_NEWUSER, "user"},
		{p.Net, unix.CLONE_NEWNET, "net"},
		{p.UTS, unix.CLONE_NEWUTS, "uts"},
		{p.IPC, unix.CLONE_NEWIPC, "ipc"},
	} {
		if ns.wanted && !isNamespace(p.path(ns.kind)) {
			flags |= ns.flag
			kinds = append(kinds, ns.kind)
		}
	}
	if flags == 0 {
		return nil
	}
	if p.IDs != nil {
		return makeOwned(p, flags, kinds)
	}
	return thread.Run(func() error { return unshare(p, flags, kinds) })
}

// unshare does the work on the thread that is thrown away.
func unshare(p Pins, flags int, kinds []string) error {
	if err := unix.Unshare(flags); err != nil {
		return fmt.Errorf("make namespaces %s: %w", strings.Join(kinds, ", "), err)
	}
	if err := setHostname(p, kinds); err != nil {
		return err
	}
	for name, value := range p.Sysctls {
		if err := setSysctl(name, value); err != nil {
			return err
		}
	}
	return pinAll("/proc/thread-self/ns", kinds, p)
}

func pinAll(ns string, kinds []string, p Pins) error {
	var errs []error
	for _, kind := range kinds {
		errs = append(errs, pin(filepath.Join(ns, kind), p.path(kind)))
	}
	return errors.Join(errs...)
}

// setHostname sets the hostname of the calling thread's UTS namespace, if it is one of kinds.
func setHostname(p Pins, kinds []string) error {
	if !slices.Contains(kinds, "uts") || p.Hostname == "" {
		return nil
	}
	if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
		return fmt.Errorf("set hostname %q: %w", p.Hostname, err)
	}
	return nil
}

// setSysctl writes one parameter. Namespaced ones are the calling thread's.
func setSysctl(name, value string) error {
	err := hostkernel.SetSysctl(sysctlPath(name), value)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE):
		return fault.Invalid.Errorf("set sysctl %s to %q: %w", name, value, err)
	case err != nil:
		return fmt.Errorf("set sysctl %s to %q: %w", name, value, err)
	}
	return nil
}

// Network namespaces are pinned apart from the others: CNI plugins do part of their work in
// agents, which open the namespace by its path (CNI_NETNS) from a pod or a chroot. Such an agent
// sees the mounts in a directory of the host if the host's mount there is shared and the agent's
// own is its slave (mountPropagation: HostToContainer). So this directory is shared, unlike the
// private one of the other pins.
//
// <state>/sandboxes/<id>/ns has a symbolic link instead, by which an older release finds the
// namespace. What such a release has pinned there stays where it is (loadSandbox).

var netNSPattern = regexp.MustCompile(`^crisp-([0-9a-f]{64})$`)

// NetNSOwner returns the ID of the sandbox that a file in Options.NetNSDir belongs to; "" if it
// is not ours.
func NetNSOwner(name string) string {
	if m := netNSPattern.FindStringSubmatch(name); m != nil {
		return m[1]
	}
	return ""
}

// netNSPath is where the network namespace of a sandbox is pinned.
func (r *Runtime) netNSPath(id string) string {
	if r.o.NetNSDir == "" {
		return filepath.Join(r.o.State, sandboxKind, id, "ns", "net")
	}
	return filepath.Join(r.o.NetNSDir, "crisp-"+id) // see netNSPattern
}

// strayNetNS lists the unknown owners of network namespaces.
func (r *Runtime) strayNetNS() []string {
	if r.o.NetNSDir == "" {
		return nil
	}
	entries, err := os.ReadDir(r.o.NetNSDir)
	if err != nil {
		return nil // nothing there to sweep
	}
	var ids []string
	for _, e := range entries {
		if id := NetNSOwner(e.Name()); id != "" && !r.sandboxes.has(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// path is where the namespace of that kind is pinned.
func (p Pins) path(kind string) string {
	if kind == "net" && p.NetNS != "" {
		return p.NetNS
	}
	return filepath.Join(p.Dir, "ns", kind)
}

// pinnedAt reports whether a namespace is pinned at path itself, not through a link.
func pinnedAt(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && st.Mode()&os.ModeSymlink == 0 && isNamespace(path)
}

// link makes the symbolic link to a network namespace that is pinned elsewhere.
func (p Pins) link() error {
	path := filepath.Join(p.Dir, "ns", "net")
	if !p.Net || p.path("net") == path {
		return nil
	}
	if to, err := os.Readlink(path); err == nil && to == p.NetNS {
		return nil
	}
	if err := os.Symlink(p.NetNS, path); err != nil {
		return fmt.Errorf("link to network namespace: %w", err)
	}
	return nil
}

// share creates dir, and mounts it on itself as a shared mount unless it already is in a shared
// one (ip-netns(8) does the same, under the same lock; MS_REC keeps what others have pinned
// there).
func share(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make directory of network namespaces: %w", err)
	}
	unlock := lockDir(dir)
	defer unlock()
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	on, err := hostkernel.MountOn(real)
	if err != nil {
		return fmt.Errorf("look at %s: %w", dir, err)
	}
	if on == nil {
		return fmt.Errorf("look at %s: no mount", dir)
	}
	if hostkernel.IsShared(on) { // proc_pid_mountinfo(5)
		return nil
	}
	if on.Mountpoint != real {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind %s onto itself: %w", dir, err)
		}
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make %s shared: %w", dir, err)
	}
	return nil
}

// lockDir keeps `ip netns` from binding dir onto itself at the same time. The wait is short: a
// process that holds the lock longer is not about to do that.
func lockDir(dir string) (unlock func()) {
	f, err := os.Open(dir)
	if err != nil {
		return func() {}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = flock.Lock(ctx, f)
	return func() { f.Close() }
}

// checkSysctls refuses parameters of the whole machine, and those of a namespace that the
// sandbox shares with it: setting them there would change them for all others.
func checkSysctls(cfg SandboxConfig) error {
	for name := range cfg.Sysctls {
		path := sysctlPath(name)
		for _, part := range strings.Split(path, "/") {
			if !clean(part) {
				return fault.Invalid.Errorf("sysctl %q does not name a parameter", name)
			}
		}
		switch kind := sysctlNamespace(path); {
		case kind == "":
			return fault.Invalid.Errorf("sysctl %q is not namespaced", name)
		case kind == "hostname":
			return fault.Invalid.Errorf("sysctl %q is set by the hostname of the sandbox", name)
		case (kind == "net" || kind == "uts") && cfg.HostNetwork, kind == "ipc" && cfg.HostIPC:
			return fault.Invalid.Errorf("sysctl %q is of the %s namespace, which is the host's", name, kind)
		}
	}
	return nil
}

// sysctlNamespace returns the kind of namespace that a parameter belongs to; "" if it is the
// machine's: namespaces(7), ipc_namespaces(7), uts_namespaces(7).
func sysctlNamespace(path string) string {
	switch {
	case strings.HasPrefix(path, "net/"):
		return "net"
	case strings.HasPrefix(path, "kernel/shm"), strings.HasPrefix(path, "kernel/msg"),
		path == "kernel/sem", path == "kernel/sem_next_id", strings.HasPrefix(path, "fs/mqueue/"):
		return "ipc"
	case path == "kernel/domainname":
		return "uts"
	case path == "kernel/hostname":
		return "hostname"
	}
	return ""
}

// DeviceSysctls separates the parameters of single network devices, keyed by their paths below
// /proc/sys, from the others. They can be set only once the device is in its namespace. The
// loopback device is there from the beginning.
func DeviceSysctls(all map[string]string) (devices, others map[string]string) {
	devices, others = make(map[string]string), maps.Clone(all)
	for name, value := range all {
		path := sysctlPath(name)
		part := strings.Split(path, "/") // net/ipv4/conf/eth0/rp_filter
		if len(part) != 5 || part[0] != "net" || part[2] != "conf" && part[2] != "neigh" {
			continue
		}
		if d := part[3]; d == "all" || d == "default" || d == "lo" || !clean(d) || !clean(part[1]) || !clean(part[4]) {
			continue
		}
		devices[path] = value
		delete(others, name)
	}
	return devices, others
}

// clean reports whether part of a path is a proper name.
func clean(part string) bool { return part != "" && part != "." && part != ".." }

// sysctlPath turns a name into a path below /proc/sys. sysctl(8): "Use either '.' or '/' as
// separator"; the first one found is the separator, and the other then stands for itself, as in
// net/ipv4/conf/eth0.100/forwarding.
func sysctlPath(name string) string {
	if i := strings.IndexAny(name, "./"); i < 0 || name[i] == '/' {
		return name
	}
	return strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, name)
}
