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

// The lock of a killed daemon is held for another moment by a child that it had forked, until
// that executes its program.
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
