// Package flock locks files, flock(2). A lock belongs to the open file description and all its
// inherited descriptors: it ends when all of them are closed, at the latest when their processes
// exit.
package flock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/backoff"
)

// ErrHeld means that another process holds the lock.
var ErrHeld = errors.New("the lock is held")

// Try locks f, or returns ErrHeld at once.
func Try(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrHeld
	}
	return os.NewSyscallError("flock", err)
}

// Unlock releases the lock while f stays open, here or in a process that inherited it.
func Unlock(f *os.File) { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) }

// patience is how long a daemon waits for its predecessor's lock. If the predecessor was killed,
// its freshly forked children hold the lock a moment longer: a child has copies of all
// descriptors until its execve(2) closes them, which takes a while on a busy machine.
const patience = 3 * time.Second

// Inherit locks f, or returns ErrHeld if another process holds the lock for longer than a killed daemon
// can.
func Inherit(f *os.File) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := Lock(ctx, f)
	if errors.Is(err, context.DeadlineExceeded) {
		return ErrHeld
	}
	return err
}

// Take opens a file, creating it with mode 0600 if it is missing, and locks it like Inherit.
func Take(path string) (*os.File, error) {
	for {
		f, err := open(path)
		if err != nil {
			return nil, err
		}
		if err := Inherit(f); err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if IsAt(f, path) {
			return f, nil
		}
		f.Close() // it was removed before it was locked: others would lock a new one
	}
}

// Renew returns f, which is locked, if it is the file at path. If that file was removed, others
// would create and lock their own: Renew recreates it, locks it and returns it in place of f, which
// the caller closes. The error is ErrHeld if another process has locked it first.
func Renew(f *os.File, path string) (*os.File, error) {
	if IsAt(f, path) {
		return f, nil
	}
	next, err := open(path)
	if err != nil {
		return nil, err
	}
	if err := Try(next); err != nil {
		next.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return next, nil
}

// IsAt reports whether f is the file at path. A lock on any other file excludes no process.
func IsAt(f *os.File, path string) bool {
	own, err := f.Stat()
	if err != nil {
		return false
	}
	at, err := os.Stat(path)
	return err == nil && os.SameFile(own, at)
}

func open(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) // with O_CLOEXEC, as always
}

// Lock locks f as soon as no other process holds the lock. It polls, so that ctx can end the wait.
func Lock(ctx context.Context, f *os.File) error {
	pause := backoff.New(100*time.Microsecond, 20*time.Millisecond)
	for {
		if err := Try(f); !errors.Is(err, ErrHeld) {
			return err
		}
		if err := pause.Wait(ctx); err != nil {
			return err
		}
	}
}
