package agent

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/flock"
)

// Two agents on one directory would start each pod twice. A removed lock is recreated, but never
// taken from an agent that has started meanwhile.
func TestRemovedLockIsPutBack(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	l, err := lockRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		remove string
		want   []string
	}{{filepath.Join(root, "none"), nil}, {l.path, []string{l.path}}, {root, []string{l.path}}} {
		if err := os.RemoveAll(c.remove); err != nil {
			t.Fatal(err)
		}
		if again, err := l.look(); err != nil || !slices.Equal(again, c.want) {
			t.Fatalf("without %s: put back %q (%v), want %q", c.remove, again, err, c.want)
		}
		if info, err := os.Stat(root); err != nil || info.Mode().Perm() != 0o750 {
			t.Errorf("without %s: mode %v (%v), want 0750", c.remove, info.Mode(), err)
		}
	}
	if _, err := lockRoot(root); !errors.Is(err, fault.Exists) {
		t.Errorf("a second agent: %v", err)
	}

	if err := os.Remove(l.path); err != nil {
		t.Fatal(err)
	}
	next, err := lockRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := l.look(); len(again) > 0 || !errors.Is(err, flock.ErrHeld) {
		t.Errorf("under a successor: put back %q, %v", again, err)
	}
	next.close()
	l.close()
	if again, err := l.look(); len(again) > 0 || err != nil {
		t.Errorf("after the end: put back %q, %v", again, err)
	}
}
