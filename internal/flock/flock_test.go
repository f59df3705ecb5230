package flock

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestLock(t *testing.T) {
	t.Parallel() // it waits for a lock that stays held
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Take(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Take(path); !errors.Is(err, ErrHeld) {
		t.Errorf("the second holder gets %v", err)
	}
	if err := Try(first); err != nil {
		t.Errorf("the first holder gets %v", err)
	}
	second, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Lock(ctx, second); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that gives up gets %v", err)
	}
	locked := make(chan error, 1)
	go func() { locked <- Lock(t.Context(), second) }()
	first.Close()
	if err := <-locked; err != nil {
		t.Errorf("a caller that waits gets %v", err)
	}
	if _, err := Take(path); !errors.Is(err, ErrHeld) {
		t.Errorf("the third holder gets %v", err)
	}
}

// The lock of a killed daemon is held a moment longer by a child that it has forked, until the
// child calls execve.
func TestTakeWaitsForChildrenOfADeadHolder(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	dead, err := Take(path)
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sleep", "0.2")
	child.ExtraFiles = []*os.File{dead} // which it does not close
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	dead.Close()
	next, err := Take(path)
	if err != nil {
		t.Fatal(err)
	}
	next.Close()
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
}

// A lock whose file was removed does not exclude others. Its holder recreates the file, unless a
// successor has the lock.
func TestRenew(t *testing.T) {
	t.Parallel() // it waits for a lock that stays held
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Take(path)
	if err != nil {
		t.Fatal(err)
	}
	if same, err := Renew(first, path); same != first || err != nil {
		t.Fatalf("nothing was removed: %v, %v", same, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	again, err := Renew(first, path)
	if err != nil || again == first {
		t.Fatalf("%v, %v", again, err)
	}
	first.Close()
	if _, err := Take(path); !errors.Is(err, ErrHeld) {
		t.Errorf("the next one gets %v", err)
	}

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	next, err := Take(path)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if f, err := Renew(again, path); f != nil || !errors.Is(err, ErrHeld) {
		t.Errorf("of a successor's lock the one before gets %v, %v", f, err)
	}
}

// If the file of a lock is removed while a process waits for the lock, getting it excludes no other
// process, which would create the file again and lock that. So the waiting process starts over.
func TestTakeOfARemovedFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	dead, err := Take(path)
	if err != nil {
		t.Fatal(err)
	}
	taken := make(chan *os.File)
	go func() {
		f, err := Take(path)
		if err != nil {
			t.Error(err)
		}
		taken <- f
	}()
	for waiting := false; !waiting; { // until it has the file open
		links, _ := filepath.Glob("/proc/self/fd/*")
		n := 0
		for _, link := range links {
			if target, _ := os.Readlink(link); target == path {
				n++
			}
		}
		waiting = n == 2
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	dead.Close()
	f := <-taken
	defer f.Close()
	if !IsAt(f, path) {
		t.Error("the lock is that of a file that is gone")
	}
}
