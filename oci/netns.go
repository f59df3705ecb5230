package oci

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/flock"
	hostkernel "github.com/crisp-cri/crisp/internal/kernel"
)

// Network namespaces are pinned apart from the others: CNI plugins do part of their work in
// agents, which open the namespace by its path (CNI_NETNS) from a pod or a chroot. Such an agent
// sees the mounts in a directory of the host if the host's mount there is shared and the agent's
// own is its slave (mountPropagation: HostToContainer). So this directory is shared, unlike the
// private one of the other pins.
//
// <state>/sandboxes/<id>/ns has a symbolic link instead, by which an older release finds the
// namespace. What such a release has pinned there stays where it is (loadSandbox).

// netNSName is the file name of a sandbox's network namespace among those of others.
func netNSName(id string) string { return "crisp-" + id }

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
	return filepath.Join(r.o.NetNSDir, netNSName(id))
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
	mounted, shared, err := mountOf(dir)
	if err != nil || shared {
		return err
	}
	if !mounted {
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

// mountOf reports whether dir is a mount point, and whether the mount that contains it is shared
// (proc_pid_mountinfo(5)).
func mountOf(dir string) (mounted, shared bool, err error) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false, false, err
	}
	on, err := hostkernel.MountOn(real)
	if err != nil {
		return false, false, fmt.Errorf("look at %s: %w", dir, err)
	}
	if on == nil {
		return false, false, fmt.Errorf("look at %s: no mount", dir)
	}
	return on.Mountpoint == real, hostkernel.IsShared(on), nil
}
