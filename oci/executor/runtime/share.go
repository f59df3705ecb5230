package runtime

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/thread"
)

// Mounts that propagate to the host (CRI's BIDIRECTIONAL). What the container's program mounts
// below one shall appear on the host; what the container itself consists of shall not: it would
// cover the host's files, once more with each start, and stay there. Unmounting it there later
// would also unmount it in other containers, to which it has propagated.
//
// So such a mount is a slave of the host's while libcontainer or an engine sets the container up,
// and joins the host's peer group when everything is mounted and nothing has been executed yet.
// Then there is nothing to undo, whatever ends when. What the host mounts or unmounts below one
// while that joins, between two system calls, is missed.
//
// Before Linux 5.15 a mount cannot join a group: there everything propagates, and stays. In a user
// namespace nothing propagates to the host (mount_namespaces(7)), and a container that is restored
// is left to CRIU.

// canJoin reports whether the kernel has MOVE_MOUNT_SET_GROUP. It looks at the flags before the
// paths, which are empty.
var canJoin = sync.OnceValue(func() bool {
	return unix.MoveMount(-1, "", -1, "", unix.MOVE_MOUNT_SET_GROUP) == unix.ENOENT
})

// enslave makes slaves of the mounts of a spec that propagate to the host, and returns their
// destinations, for share.
func enslave(spec *specs.Spec) (destinations []string) {
	if !canJoin() || slices.ContainsFunc(spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.UserNamespace }) {
		return nil
	}
	for _, m := range spec.Mounts {
		if i := slices.IndexFunc(m.Options, func(o string) bool { return o == "shared" || o == "rshared" }); i >= 0 {
			m.Options[i] = "rslave"
			destinations = append(destinations, m.Destination)
		}
	}
	if len(destinations) > 0 {
		spec.Linux.RootfsPropagation = "rslave"
	}
	return destinations
}

// share lets the mounts at destinations propagate to the host, in the mount namespace of pid, where
// nothing of the container has been executed yet. All other mounts become shared too, as with
// libcontainer: with the mount namespaces that are made in the container.
func share(pid int, destinations []string) error {
	if len(destinations) == 0 {
		return nil
	}
	return thread.Run(func() error {
		host, err := os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		defer host.Close()
		proc, err := os.OpenFile("/proc", unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		defer proc.Close()
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err != nil {
			return err
		}
		defer ns.Close()
		if own, err := ownNamespace(ns); own || err != nil {
			return err
		}
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
			return os.NewSyscallError("setns", err)
		}
		for _, d := range destinations {
			// Until a mount has joined, the host may mount something there that arrives as a slave.
			for joined := -1; joined != 0; {
				if joined, err = joinAt(d, pid, host, proc); err != nil {
					return fmt.Errorf("mount at %s cannot propagate to the host: %w", d, err)
				}
			}
		}
		return os.NewSyscallError("mount_setattr", unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Propagation: unix.MS_SHARED}))
	})
}

// ownNamespace reports whether a mount namespace is the executor's: an engine that is a virtual
// machine may have no other.
func ownNamespace(ns *os.File) (bool, error) {
	theirs, err := ns.Stat()
	if err != nil {
		return false, err
	}
	ours, err := os.Stat("/proc/thread-self/ns/mnt")
	return err == nil && os.SameFile(ours, theirs), err
}

// A location is where a mount is, for its peers and slaves alike.
type location struct {
	parent string // peer group of the mount on which it is
	at     string // in that one's file system
	group  string // its own peer group
}

// joinAt has the mount at a destination, and the mounts that were cloned with it, join the peer
// groups that they are slaves of, and returns how many have. It runs in the container's mount
// namespace, with the host's root directory and procfs.
func joinAt(destination string, pid int, host, proc *os.File) (joined int, err error) {
	there, err := mountsOf(proc, os.Getpid())
	if err != nil {
		return 0, err
	}
	here, err := mountsOf(proc, pid)
	if err != nil {
		return 0, err
	}
	top, id, err := openMount(unix.AT_FDCWD, destination)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // as with an engine that is a virtual machine
	}
	if err != nil {
		return 0, err
	}
	top.Close()
	peers := make(map[string][]*mountinfo.Info)
	known := make(map[location]bool)
	for _, m := range there {
		if group := kernel.PeerGroup(m); group != "" {
			peers[group] = append(peers[group], m)
			known[placeOf(m, there)] = true
		}
	}
	var join func(m *mountinfo.Info) error
	join = func(m *mountinfo.Info) error {
		if !kernel.IsShared(m) {
			if done, err := joinPeers(m, peers[groupOf(m)], host); !done {
				return err
			}
			joined++
		}
		for _, below := range here {
			if below.Parent == m.ID && known[placeOf(below, here)] {
				if err := join(below); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if m := here[id]; m != nil { // else it arrived just now
		err = join(m)
	}
	return joined, err
}

// joinPeers has m, a slave mount of the container, join the peer group of its master. It is not
// done if the host has no such peer, if another mount covers either, or if the host unmounts m
// meanwhile.
//
// The kernel wants a peer whose root is m's or above it. What mountinfo shows of roots rules some
// out, but does not prove it: all are "/" on NFS, and a directory that was removed keeps its name.
func joinPeers(m *mountinfo.Info, peers []*mountinfo.Info, host *os.File) (done bool, err error) {
	to, id, err := openMount(unix.AT_FDCWD, m.Mountpoint)
	if err != nil {
		return false, nil // the host unmounted it
	}
	defer to.Close()
	for _, p := range peers {
		if id != m.ID || !inside(m.Root, p.Root) {
			continue
		}
		var tried bool
		if tried, err = joinPeer(to, p, host); tried && err == nil {
			return true, nil
		}
		if err != nil && !errors.Is(err, unix.EINVAL) {
			return false, err
		}
	}
	if again, id, err := openMount(unix.AT_FDCWD, m.Mountpoint); err != nil {
		return false, nil
	} else if again.Close(); id != m.ID {
		return false, nil
	}
	return false, err
}

// joinPeer has the mount at to join the peer group of p, unless another mount covers that.
func joinPeer(to *os.File, p *mountinfo.Info, host *os.File) (tried bool, err error) {
	from, id, err := openMount(int(host.Fd()), strings.TrimPrefix(p.Mountpoint, "/"))
	if err != nil {
		return false, nil
	}
	defer from.Close()
	if id != p.ID {
		return false, nil
	}
	if err := unix.MountSetattr(int(to.Fd()), "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_PRIVATE}); err != nil {
		return true, os.NewSyscallError("mount_setattr", err)
	}
	return true, os.NewSyscallError("move_mount", unix.MoveMount(int(from.Fd()), "", int(to.Fd()), "", unix.MOVE_MOUNT_SET_GROUP|unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
}

// inside reports whether the clean path name is dir or below it.
func inside(name, dir string) bool {
	return name == dir || dir == "/" || strings.HasPrefix(name, dir+"/")
}

// openMount opens a path and returns the ID of the mount that is there. It does not wait for its
// file system.
func openMount(dir int, name string) (*os.File, int, error) {
	fd, err := unix.Openat(dir, cmp.Or(name, "."), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st); err != nil {
		f.Close()
		return nil, 0, &os.PathError{Op: "statx", Path: name, Err: err}
	}
	return f, int(st.Mnt_id), nil
}

// mountsOf returns the mounts that a process sees, by their IDs.
func mountsOf(proc *os.File, pid int) (map[int]*mountinfo.Info, error) {
	name := strconv.Itoa(pid) + "/mountinfo"
	fd, err := unix.Openat(int(proc.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/proc/" + name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	list, err := mountinfo.GetMountsFromReader(f, nil)
	all := make(map[int]*mountinfo.Info)
	for _, m := range list {
		all[m.ID] = m
	}
	return all, err
}

// groupOf returns the peer group of a mount, or of its master.
func groupOf(m *mountinfo.Info) string {
	return cmp.Or(kernel.PeerGroup(m), kernel.MasterGroup(m))
}

func placeOf(m *mountinfo.Info, all map[int]*mountinfo.Info) location {
	on := all[m.Parent]
	if on == nil {
		return location{}
	}
	return location{groupOf(on), path.Join(on.Root, strings.TrimPrefix(m.Mountpoint, on.Mountpoint)), groupOf(m)}
}
