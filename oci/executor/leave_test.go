package executor

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
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
			c, err := x.reserve(settings{ID: "first"}, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := end(x); !errors.Is(err, fault.WrongState) {
				t.Fatalf("left with a container that is starting: %v", err)
			}
			if _, err := x.reserve(settings{ID: "second"}, nil, nil); err != nil {
				t.Fatalf("stays, and refuses: %v", err)
			}
			x.release(c)
			x.release(x.containers["second"])
			if err := end(x); err != nil {
				t.Fatal(err)
			}
			if _, err := x.reserve(settings{ID: "third"}, nil, nil); !errors.Is(err, fault.Unavailable) {
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

// How an exec ended only the executor knows. Its container may be the last one, and the
// exec what has ended it.
func TestLeavingTellsExecCodes(t *testing.T) {
	x := newExecutor(t)
	e := &execution{id: "e", c: &container{}, proc: &child{}, code: 7, owner: new(wire.Conn), ended: make(chan struct{})}
	close(e.ended)
	x.execs[e.id] = e
	if err := x.CloseIdle(); !errors.Is(err, fault.WrongState) {
		t.Fatalf("left with a code that nobody has asked for: %v", err)
	}
	var call wire.Call
	reply, err := x.waitExec(t.Context(), e.owner, &call, e.id)
	if err != nil || reply.Code != 7 {
		t.Fatalf("got %v, %v", reply, err)
	}
	if err := x.CloseIdle(); !errors.Is(err, fault.WrongState) {
		t.Fatalf("left with a code that is not told: %v", err)
	}
	call.Then()
	if err := x.CloseIdle(); err != nil {
		t.Error(err)
	}
}

// An upgrade that meets a start on its way must be refused, and must not leave the
// gate shut: no container's output would be read from then on, and no exit taken.
func TestUpgradeRefusesAStartOnItsWay(t *testing.T) {
	x := newExecutor(t)
	c, err := x.reserve(settings{ID: "a"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var call wire.Call
	if err := x.upgrade(wire.UpgradeRequest{Path: "/proc/self/exe"}, &call); !errors.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
	entered := make(chan struct{})
	go func() {
		x.gate.enter()
		defer x.gate.leave()
		close(entered)
	}()
	select {
	case <-entered:
	case <-time.After(time.Minute):
		t.Fatal("the gate is shut")
	}
	x.release(c)
	if err := x.upgrade(wire.UpgradeRequest{Path: "/proc/self/exe"}, &call); err != nil {
		t.Errorf("the retry: %v", err)
	}
	if call.Then == nil {
		t.Error("nothing follows the answer")
	}
}
