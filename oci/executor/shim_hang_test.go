package executor_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/shimtest/behaviour"
	"github.com/crisp-cri/crisp/test/testenv"
)

// fakeShim starts a node with the shim of tests, and returns what tells that how to behave.
func fakeShim(t *testing.T) (n *node, with option, behave func(behaviour.Behaviour)) {
	t.Helper()
	testenv.Need(t, "shims")
	testenv.RemoveShimDirs(t)
	n = start(t)
	built, err := testenv.Build(filepath.Dir(programs.testbin), "shimtest")
	if err != nil {
		n.t.Fatal(err)
	}
	path := filepath.Join(n.dir, "containerd-shim-test")
	if err := testenv.Link(built, path); err != nil {
		n.t.Fatal(err)
	}
	behave = func(b behaviour.Behaviour) {
		n.t.Helper()
		if err := b.Save(path); err != nil {
			n.t.Fatal(err)
		}
	}
	behave(behaviour.Behaviour{})
	return n, func(req *wire.RunRequest, _ *specs.Spec) { req.Shim = &wire.Shim{Path: path} }, behave
}

// runsAgain checks that a container that was run before, whatever its shim did, can be run again.
func (n *node) runsAgain(id string, with option) {
	n.t.Helper()
	b := n.run([]string{"print", "again", "exit", "4"}, with, func(req *wire.RunRequest, _ *specs.Spec) { req.ID = id })
	if e := n.waitExit(id); e.Code != 4 {
		n.t.Errorf("the next run ended with %+v", e)
	}
	b.call(wire.MethodDelete, wire.Ref{ID: id}, nil)
	b.drop()
}

// A shim that hangs or dies in a call of a start keeps no container from being killed and removed, and
// the next start of it succeeds.
func TestShimFailsInAStart(t *testing.T) {
	testenv.Need(t, "shims")
	for _, call := range []string{"start", "Create", "Start"} {
		for how, b := range map[string]behaviour.Behaviour{
			"hangs": {Hang: []string{call}}, "dies": {Die: []string{call}}, "fails": {Fail: map[string]string{call: "Internal: it is broken"}},
		} {
			if call == "start" && how == "fails" {
				continue // it is no call of the Task API
			}
			t.Run(call+" "+how, func(t *testing.T) {
				t.Parallel()
				n, with, behave := fakeShim(t)
				behave(b)
				c := n.request([]string{"sleep", "for-ever"}, with)
				result := n.begin(t.Context(), c)
				if how == "hangs" {
					eventually(t, func() bool { return testenv.Exists(filepath.Join(c.bundle(), "config.json")) }, "it does not begin")
					time.Sleep(time.Second)
					c.signal(unix.SIGKILL, true)
				}
				if err := <-result; err == nil || errors.Is(err, fault.Unavailable) {
					t.Errorf("the start ended with %v", err)
				}
				c.delete()
				if pids := shimsOf(c); len(pids) > 0 {
					t.Errorf("processes %v are left", pids)
				}
				behave(behaviour.Behaviour{})
				n.runsAgain(c.id, with)
			})
		}
	}
}

// A shim that hangs or dies in a call of a running container: it can be killed and removed, its exit
// is told once, and nothing of it stays.
func TestShimFailsInARun(t *testing.T) {
	testenv.Need(t, "shims")
	for _, call := range []string{"State", "Wait", "Kill", "Delete", "Shutdown", "delete"} {
		for how, b := range map[string]behaviour.Behaviour{
			"hangs": {Hang: []string{call}}, "dies": {Die: []string{call}}, "fails": {Fail: map[string]string{call: "Internal: it is broken"}},
		} {
			t.Run(call+" "+how, func(t *testing.T) {
				t.Parallel()
				n, with, behave := fakeShim(t)
				if call == "Wait" {
					behave(b) // it is called at once
				}
				c := n.run([]string{"sleep", "for-ever"}, with)
				behave(b)
				_, _ = n.client.Call(t.Context(), wire.MethodSignal, wire.SignalRequest{ID: c.id, Signal: int(unix.SIGKILL), All: true}, nil)
				for ended := false; !ended; {
					select {
					case e := <-n.exits:
						if ended = true; e.ID != c.id || e.Code != 137 {
							t.Errorf("it ended with %+v", e)
						}
					case <-time.After(15 * time.Second): // as crispd does
						_, _ = n.client.Call(t.Context(), wire.MethodSignal, wire.SignalRequest{ID: c.id, Signal: int(unix.SIGKILL), All: true}, nil)
					}
				}
				c.delete()
				if len(n.exits) > 0 {
					t.Errorf("it has ended again: %+v", <-n.exits)
				}
				if pids := shimsOf(c); len(pids) > 0 || alive(c.reply.Pid) {
					t.Errorf("processes %v, or %d, are left", pids, c.reply.Pid)
				}
				behave(behaviour.Behaviour{})
				n.runsAgain(c.id, with)
			})
		}
	}
}

// The end of a container is told by the shim's Wait and by its event: by either alone, and once if both
// tell it, even twice.
func TestShimExitsOnce(t *testing.T) {
	testenv.Need(t, "shims")
	for name, b := range map[string]behaviour.Behaviour{
		"both": {}, "events alone": {Hang: []string{"Wait"}}, "Wait alone": {Silent: true}, "twice": {Twice: true}, "version 2": {Version: 2, Answer: "address"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, with, behave := fakeShim(t)
			behave(b)
			c := n.run([]string{"sleep", "100ms", "exit", "7"}, with)
			if e := c.wait(); e.Code != 7 || e.Reason != wire.ReasonError {
				t.Errorf("it ended with %+v", e)
			}
			behave(behaviour.Behaviour{})
			c.delete()
			time.Sleep(100 * time.Millisecond)
			if len(n.exits) > 0 {
				t.Errorf("it has ended again: %+v", <-n.exits)
			}
		})
	}
}

// A shim that fails an exec, or hangs in it, harms the exec alone.
func TestShimFailsInAnExec(t *testing.T) {
	testenv.Need(t, "shims")
	for _, call := range []string{"Exec", "Start"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			n, with, behave := fakeShim(t)
			c := n.run([]string{"print", "up", "sleep", "for-ever"}, with)
			behave(behaviour.Behaviour{Fail: map[string]string{call: "NotFound: no such program"}})
			err := n.fails(nil, wire.MethodExec, wire.ExecRequest{ID: c.id, Process: process("exit", "0")})
			if errors.Is(err, fault.NotFound) || !strings.Contains(fmt.Sprint(err), "no such program") {
				t.Errorf("the exec failed with %v", err)
			}
			behave(behaviour.Behaviour{})
			if code := c.exec(wire.ExecRequest{Process: process("exit", "4")}).wait(); code != 4 {
				t.Errorf("the next exec ended with %d", code)
			}
			if dirs, _ := filepath.Glob(filepath.Join(c.bundle(), "exec-*")); len(dirs) > 1 { // that of the last may go yet
				t.Errorf("directories of execs are left: %v", dirs)
			}
		})
	}
}
