package executor_test

import (
	"errors"
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

// asSandbox has a shim make a sandbox by its Sandbox API.
func asSandbox(req *wire.RunRequest, _ *specs.Spec) {
	req.Shim.SandboxAPI, req.Shim.Pod, req.LogPath = true, []byte("\x12\x01h"), ""
}

// inSandboxOf has the shim of a sandbox run a container.
func inSandboxOf(first *box) option {
	return func(req *wire.RunRequest, _ *specs.Spec) {
		req.Shim = &wire.Shim{Path: first.req.Shim.Path, Sandbox: first.id, SandboxAPI: true}
	}
}

// serving is the behaviour of a shim with the Sandbox API.
func serving(b behaviour.Behaviour) behaviour.Behaviour {
	b.Sandbox = true
	return b
}

// A sandbox of the Sandbox API and the containers in it outlive upgrades of the executor; then the
// sandbox is ended, told once, and leaves nothing.
func TestShimSandbox(t *testing.T) {
	testenv.Need(t, "shims")
	n, with, behave := fakeShim(t)
	behave(serving(behaviour.Behaviour{}))
	s := n.run(nil, with, asSandbox)
	c := n.run([]string{"print", "begun", "await", "/tmp/go", "print", "ended", "exit", "9"}, inSandboxOf(s))
	c.says("begun\n")
	for range 2 {
		n.upgrade()
	}
	c.touch("tmp/go")
	if e := c.wait(); e.Code != 9 {
		t.Errorf("the container ended with %+v", e)
	}
	c.says("ended\n")
	c.delete()
	s.signal(unix.SIGKILL, true)
	s.wait()
	s.shimEnds(s.delete)
	if len(n.exits) > 0 {
		t.Errorf("it has ended again: %+v", <-n.exits)
	}
}

// A shim that hangs or dies in a call for its sandbox, or fails: the sandbox can be ended and removed,
// nothing of it stays, and the next one of the same name runs.
func TestShimFailsAPod(t *testing.T) {
	testenv.Need(t, "shims")
	for _, call := range []string{"CreateSandbox", "StartSandbox", "WaitSandbox", "SandboxStatus", "StopSandbox", "ShutdownSandbox"} {
		for how, b := range map[string]behaviour.Behaviour{
			"hangs": {Hang: []string{call}}, "dies": {Die: []string{call}}, "fails": {Fail: map[string]string{call: "Unknown: it is broken"}},
		} {
			t.Run(strings.Replace(call, "Sandbox", "", 1)+" "+how, func(t *testing.T) {
				t.Parallel()
				n, with, behave := fakeShim(t)
				behave(serving(b))
				s := n.request(nil, with, asSandbox)
				if call == "CreateSandbox" || call == "StartSandbox" {
					n.refuses(s, how)
				} else {
					s.fds = n.call(wire.MethodRun, s.req, &s.reply)
					t.Cleanup(s.drop)
					n.killed(s)
				}
				s.delete()
				if pids := shimsOf(s); len(pids) > 0 {
					t.Errorf("processes %v are left", pids)
				}
				behave(serving(behaviour.Behaviour{}))
				again := n.run(nil, with, asSandbox, func(req *wire.RunRequest, _ *specs.Spec) { req.ID = s.id })
				n.killed(again)
				again.call(wire.MethodDelete, wire.Ref{ID: s.id}, nil)
			})
		}
	}
}

// refuses starts a sandbox, which fails; one that hangs is killed.
func (n *node) refuses(s *box, how string) {
	n.t.Helper()
	result := n.begin(n.t.Context(), s)
	if how == "hangs" {
		eventually(n.t, func() bool { return testenv.Exists(s.bundle()) }, "it does not begin")
		time.Sleep(time.Second)
		s.signal(unix.SIGKILL, true)
	}
	if err := <-result; err == nil || errors.Is(err, fault.Unavailable) || how == "fails" && !strings.Contains(err.Error(), "Sandbox: it is broken") {
		n.t.Errorf("the start ended with %v", err)
	}
}

// killed ends a sandbox as crispd does, and checks that its end is told once.
func (n *node) killed(s *box) {
	n.t.Helper()
	for kill := time.After(0); ; {
		select {
		case e := <-n.exits:
			if e.ID != s.req.ID {
				n.t.Errorf("it ended with %+v", e)
			}
			if len(n.exits) > 0 {
				n.t.Errorf("it has ended again: %+v", <-n.exits)
			}
			return
		case <-kill:
			_, _ = n.client.Call(n.t.Context(), wire.MethodSignal, wire.SignalRequest{ID: s.req.ID, Signal: int(unix.SIGKILL), All: true}, nil)
			kill = time.After(15 * time.Second) // as crispd does
		}
	}
}
