package executor

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/internal/flock"
)

// A child that a killed executor has forked but that has not yet called execve holds the
// executor's lock a moment longer.
func TestStartOutlastsTheLockOfAKilledExecutor(t *testing.T) {
	dir := t.TempDir()
	lock, err := flock.Take(filepath.Join(dir, "executor.lock"))
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { lock.Close() })
	x, err := New(Options{Socket: filepath.Join(dir, "executor.sock"), State: dir, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.files.lock.Close() })
}
