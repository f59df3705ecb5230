package executor

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
)

func newExecutor(t *testing.T) *Executor {
	t.Helper()
	dir := t.TempDir()
	x, err := New(Options{Socket: filepath.Join(dir, "executor.sock"), State: dir, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.lock.Close() })
	return x
}

// An executor that was told to end may still be reached, by a crispd that starts just
// then. A container begun there would be nobody's child a moment later: its output and
// its exit code would be lost.
func TestLeavingTakesNoContainer(t *testing.T) {
	for name, end := range map[string]func(*Executor) error{"close": (*Executor).Close, "idle": (*Executor).CloseIdle} {
		t.Run(name, func(t *testing.T) {
			x := newExecutor(t)
			c, err := x.reserve(settings{ID: "first"})
			if err != nil {
				t.Fatal(err)
			}
			if err := end(x); !errors.Is(err, fault.WrongState) {
				t.Fatalf("left with a container that is starting: %v", err)
			}
			if _, err := x.reserve(settings{ID: "second"}); err != nil {
				t.Fatalf("stays, and refuses: %v", err)
			}
			x.release(c)
			x.release(x.containers["second"])
			if err := end(x); err != nil {
				t.Fatal(err)
			}
			if _, err := x.reserve(settings{ID: "third"}); !errors.Is(err, fault.Unavailable) {
				t.Errorf("got %v", err)
			}
			if err := x.become(os.Stdin, nil); !errors.Is(err, fault.Unavailable) {
				t.Errorf("upgrade: got %v", err)
			}
			if err := end(x); err != nil {
				t.Errorf("told twice: %v", err)
			}
		})
	}
}
