package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/crisp-cri/crisp/test/testenv"
)

// Concurrent runs would overwrite each other's results, and those of a killed run are useless.
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
		t.Error("a second run has the lock, too")
	}
	if !testenv.Exists(old) {
		t.Error("the first run's files are gone")
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	if unlock, err = lock(cache); err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if testenv.Exists(old) {
		t.Errorf("%s is left", old)
	}
}
