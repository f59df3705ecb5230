package executor

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/executor/runtime"
	"github.com/crisp-cri/crisp/oci/wire"
)

// A removable is the runtime of a container that can be removed; anything else that is asked of it
// panics.
type removable struct{ runtime.Runtime }

func (removable) Remove() error { return nil }

// A bug in any call about a container fails that call. It keeps neither the container from being
// removed, nor the executor from being upgraded.
func TestPanicKeepsNothing(t *testing.T) {
	x := newExecutor(t)
	process := []byte(`{"args":["true"]}`)
	for name, call := range map[string]func(c *container) error{
		"update": func(c *container) error { return x.update(wire.UpdateRequest{ID: c.ID}) },
		"exec": func(c *container) error {
			_, _, err := x.exec(t.Context(), new(wire.Conn), wire.ExecRequest{ID: c.ID, Process: process})
			return err
		},
		"freeze": func(c *container) error {
			var none context.Context
			_, err := x.table.freezeAll(none, []string{c.ID})
			return err
		},
		"delete": func(c *container) error {
			x.table.edit(func() { c.exit, c.phase = exitOf(c.ID, 0, false, time.Now()), ended })
			return x.delete(c.ID)
		},
	} {
		c := newFakeCgroup(t).container(x, name)
		c.runtime = nil // each call of it panics
		if err := fault.Protect(func() error { return call(c) }); err == nil {
			t.Errorf("%s: it has not failed", name)
		}
		if c.entering > 0 || c.frozen != nil {
			t.Errorf("%s: it cannot be frozen, or executed in, any more", name)
		}
		if !x.gate.Close(time.Second, time.Second) {
			t.Fatalf("%s: the executor cannot be upgraded any more", name)
		}
		x.gate.Open()
		c.runtime = removable{}
		if c.phase == running {
			x.table.edit(func() { c.exit, c.phase = exitOf(c.ID, 0, false, time.Now()), ended })
		}
		if err := x.delete(c.ID); err != nil {
			t.Errorf("%s: it cannot be removed: %v", name, err)
		}
	}
}

// A container whose watcher panics each time still ends, and so does an exec: what waits for them
// would wait for ever.
func TestPanicOfAWatcherEndsWhatItWatches(t *testing.T) {
	x := newExecutor(t)
	cmd := exec.Command("sleep", "3600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill() // reaped already, unless the test has failed
	c := newFakeCgroup(t).container(x, "a")
	c.gone, c.runtime = make(chan struct{}), removable{}
	var err error
	if c.proc, err = proc.Open(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	x.attend(c) // without its stdio, on which most of the work panics
	select {
	case <-c.gone:
	default:
		t.Fatal("it has not ended")
	}
	if e := x.table.ending(c); e == nil || e.Code != 137 {
		t.Errorf("its exit is %+v", e)
	}
	if err := x.delete("a"); err != nil {
		t.Error(err)
	}

	e := x.execs.open(c, nil) // without a process
	x.execs.all[e.id] = e
	x.execs.attend(e)
	var call wire.Call
	if r, err := x.execs.wait(t.Context(), new(wire.Conn), &call, e.id); err != nil || r.Code != 255 {
		t.Errorf("of the exec: %+v, %v", r, err)
	}
}
