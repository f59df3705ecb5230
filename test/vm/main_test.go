package main

import (
	"os"
	"path/filepath"
	"testing"
)

// Two runs would write each other's results; what a killed one left is of no use.
func TestLock(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "vm")
	unlock, err := lock(cache)
	if err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(cache, "run-1", "payload")
	if err := os.MkdirAll(old, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := lock(cache); err == nil {
		t.Error("a second run has it too")
	}
	if !exists(old) {
		t.Error("the first run's files are gone")
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	if unlock, err = lock(cache); err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if exists(old) {
		t.Errorf("%s is left", old)
	}
}
