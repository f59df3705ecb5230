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
