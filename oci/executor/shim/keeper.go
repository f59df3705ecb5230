package shim

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
)

// A Keeper keeps FIFOs open as long as a shim lives: their reading ends are in flight between two sockets
// that the shim inherits and does not know. So what a container writes before it ends is not lost,
// though no executor runs.
//
// Programs that the shim starts inherit the sockets, too. runc and runsc close them in all that runs for
// a container. A process that has broken out of that can receive what is kept, which is the output of
// its own pod by descriptions of its own, and put in what it likes, of which nothing is received but
// names that are not trusted.
type Keeper struct {
	Number uint64      // tells it from all others
	ends   [2]*os.File // files go into the first
}

const (
	// keptAt is the first of the two descriptors in the shim, above those with which programs pass
	// files to their children, which count from 3.
	keptAt  = 100
	maxKept = 4096 // names; the sockets' buffer has no room for so many
)

// NewKeeper returns one for a shim to be started.
func NewKeeper() (*Keeper, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	return newKeeper(fds), nil
}

// OpenKeeper returns the one that a process has inherited.
func OpenKeeper(pid int, number uint64) (*Keeper, error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(pidfd)
	fds := [2]int{-1, -1}
	for i := range fds {
		if fds[i], err = unix.PidfdGetfd(pidfd, keptAt+i, 0); err != nil {
			break
		}
	}
	k := newKeeper(fds)
	if err == nil && k.Number == number {
		return k, nil
	}
	k.Close()
	if err == nil {
		return nil, fault.WrongState.Errorf("process %d has other sockets than those of its keeper", pid)
	}
	return nil, fault.WrongState.Errorf("process %d does not have its keeper's sockets: pidfd_getfd: %w", pid, err)
}

func newKeeper(fds [2]int) *Keeper {
	k := &Keeper{ends: [2]*os.File{os.NewFile(uintptr(fds[0]), "keeper"), os.NewFile(uintptr(fds[1]), "keeper")}}
	var st unix.Stat_t
	if unix.Fstat(fds[0], &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK {
		k.Number = st.Ino
	}
	return k
}

// inherited returns the files that a command passes on from descriptor 3.
func (k *Keeper) inherited() []*os.File {
	if k == nil {
		return nil
	}
	return append(make([]*os.File, keptAt-3), k.ends[:]...)
}

// Put opens FIFOs and holds them under a name; a path may be "".
func (k *Keeper) Put(name string, paths ...string) error {
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	for _, path := range slices.DeleteFunc(paths, func(path string) bool { return path == "" }) {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		fds = append(fds, fd)
	}
	err := unix.Sendmsg(int(k.ends[0].Fd()), []byte(name), unix.UnixRights(fds...), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return os.NewSyscallError("sendmsg", err)
}

// Renew puts anew what is kept, by the paths that keep returns for its name; none = it is let go.
// Nothing that stays is closed meanwhile.
func (k *Keeper) Renew(keep func(name string) (paths []string)) error {
	buf, again := make([]byte, 256), make(map[string]bool)
	next := func(flags int) (string, error) {
		n, _, err := unix.Recvfrom(int(k.ends[1].Fd()), buf, unix.MSG_DONTWAIT|flags) // the kernel closes the files
		return string(buf[:max(n, 0)]), err
	}
	for range maxKept {
		name, err := next(unix.MSG_PEEK)
		if err != nil || again[name] { // nothing is left
			break
		}
		if paths := keep(name); len(paths) > 0 {
			if err := k.Put(name, paths...); err != nil {
				return err
			}
			again[name] = true
		}
		_, _ = next(0)
	}
	return nil
}

// Close closes our descriptors; the shim's stay.
func (k *Keeper) Close() {
	for _, f := range k.ends {
		f.Close()
	}
}
