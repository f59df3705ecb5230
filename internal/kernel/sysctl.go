package kernel

import (
	"errors"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Sysctl returns the parameter at a path below /proc/sys, "" if it cannot be read. Parameters of
// namespaces are the calling thread's.
func Sysctl(path string) string {
	f, err := openSysctl(path, unix.O_RDONLY)
	if err != nil {
		return ""
	}
	defer f.Close()
	data, _ := io.ReadAll(f)
	return strings.TrimSpace(string(data))
}

// SetSysctl sets it.
func SetSysctl(path, value string) error {
	f, err := openSysctl(path, unix.O_WRONLY)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// own is a procfs that only we use. In /proc/sys/net the kernel keeps a directory "ipv4" for each
// network namespace in which one was ever looked up, all with the same parent and name, and goes
// through them one by one: with a thousand pods half a millisecond for each path. So ours is
// replaced after some lookups.
var own struct {
	sync.Mutex
	dir  *os.File // nil = not permitted; then /proc does it
	left int      // lookups
}

const ownLookups = 512

func openSysctl(path string, flags int) (*os.File, error) {
	if !strings.HasPrefix(path, "net/") {
		return os.OpenFile("/proc/sys/"+path, flags, 0)
	}
	own.Lock()
	defer own.Unlock()
	if own.left == 0 {
		old := own.dir
		own.dir, own.left = newProc(), ownLookups
		go old.Close() // which waits for the kernel's CPUs
	}
	own.left--
	if own.dir == nil {
		return os.OpenFile("/proc/sys/"+path, flags, 0)
	}
	fd, err := unix.Openat(int(own.dir.Fd()), "sys/"+path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/proc/sys/" + path, Err: err}
	}
	return os.NewFile(uintptr(fd), "/proc/sys/"+path), nil
}

// newProc returns the root of a new procfs that is mounted nowhere, nil where that is not permitted.
func newProc() *os.File {
	context, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil
	}
	defer unix.Close(context)
	if unix.FsconfigCreate(context) != nil {
		return nil
	}
	fd, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), "/proc")
}
