package executor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/noleaks"
)

// goroutines returns the number of the executor's goroutines by the function that they started
// with, except those that serve this call.
func (n *node) goroutines() map[string]int {
	n.t.Helper()
	var reply wire.ProfileReply
	n.call(wire.MethodProfile, wire.ProfileRequest{Name: "goroutine", Debug: 1}, &reply)
	all := noleaks.Begun(string(reply.Data))
	if len(all) == 0 {
		n.t.Fatalf("no goroutines in %q", reply.Data)
	}
	return all
}

// A client's connection lasts for weeks. No goroutine of the executor may remain of the work on it
// until it ends.
func TestNoGoroutineIsLeft(t *testing.T) {
	n := start(t)
	work := func() {
		b := n.run([]string{"sleep", "for-ever"}, withStdin)
		for range 5 {
			if code := b.exec(wire.ExecRequest{Process: process("exit", "3")}).wait(); code != 3 {
				t.Errorf("exec ended with %d", code)
			}
		}
		for _, f := range b.attach(true) {
			f.Close()
		}
		n.call(wire.MethodReopenLog, wire.Ref{ID: b.id}, nil)
		b.signal(unix.SIGKILL, false)
		b.wait()
		n.fails(fault.WrongState, wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process("exit", "0")})
		b.delete()
		failed := n.request(nil, func(_ *wire.RunRequest, s *specs.Spec) { s.Process.Args = []string{"/nosuch"} })
		n.fails(nil, wire.MethodRun, failed.req)
	}
	work() // starts the permanent ones
	before := n.goroutines()
	for range 3 {
		work()
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var more []string
		for began, count := range n.goroutines() {
			if was := before[began]; count > was {
				more = append(more, fmt.Sprintf("%s: %d, was %d", began, count, was))
			}
		}
		if len(more) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("goroutines are left:\n%s", strings.Join(more, "\n"))
		}
	}
}

func TestUnknownProfile(t *testing.T) {
	n := start(t)
	n.fails(fault.NotFound, wire.MethodProfile, wire.ProfileRequest{Name: "nosuch"})
}
