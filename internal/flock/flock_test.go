package flock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Take(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Take(path); !errors.Is(err, ErrHeld) {
		t.Errorf("the second gets %v", err)
	}
	if err := Try(first); err != nil {
		t.Errorf("who has it gets %v", err)
	}
	second, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Lock(ctx, second); !errors.Is(err, context.Canceled) {
		t.Errorf("who gives up gets %v", err)
	}
	locked := make(chan error, 1)
	go func() { locked <- Lock(t.Context(), second) }()
	first.Close()
	if err := <-locked; err != nil {
		t.Errorf("who waits gets %v", err)
	}
	if _, err := Take(path); !errors.Is(err, ErrHeld) {
		t.Errorf("the third gets %v", err)
	}
}
