package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/flock"
	"github.com/crisp-cri/crisp/internal/thread"
)

// listen makes the unix socket at path, mode 0660. A socket left by a dead crispd is
// replaced; one that somebody listens at is an error.
func listen(path string) (net.Listener, error) {
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return nil, fmt.Errorf("socket %s is in use", path)
	} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ECONNREFUSED) {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSocket == 0 {
		return nil, fmt.Errorf("%s is there and is no socket", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	// Nobody may connect between bind and chmod, so a umask sets the mode, on a
	// thread with one of its own: the process makes files meanwhile, as a reload
	// calls listen too.
	var l net.Listener
	err := thread.Run(func() (err error) {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		unix.Umask(0o117)
		l, err = net.Listen("unix", path)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}

// listenForRoot is listen with mode 0600.
func listenForRoot(path string) (net.Listener, error) {
	l, err := listen(path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// lock keeps any other crispd out of a directory for as long as this process lives;
// the kernel releases the lock when it dies (flock(2)).
func lock(dir string) (*os.File, error) {
	f, err := flock.Take(filepath.Join(dir, "crispd.lock"))
	if errors.Is(err, flock.ErrHeld) {
		return nil, fmt.Errorf("another crispd uses %s", dir)
	}
	return f, err
}

// makeDirs makes root and state and locks both until unlock is called. Others may pass through them (0711):
// the users of a user namespace must reach its root file system. The content has
// modes of its own.
func makeDirs(dirs ...string) (unlock func(), err error) {
	var locks []*os.File
	unlock = func() {
		for _, l := range locks {
			l.Close()
		}
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			unlock()
			return nil, err
		}
		f, err := lock(dir)
		if err != nil {
			unlock()
			return nil, err
		}
		locks = append(locks, f)
	}
	return unlock, nil
}
