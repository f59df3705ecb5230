package executor_test

import (
	"context"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/filetrace"
	"github.com/crisp-cri/crisp/oci/wire"
)

// stalls makes the executor's next fork wait, as under memory pressure, until release is called.
// give is called with a context that ends meanwhile, and must return an error.
func (n *node) stalls(what string, give func(ctx context.Context) error) {
	n.t.Helper()
	tracer := filetrace.Attach(n.t, n.cmd.Process.Pid)
	tracer.Only("clone", "clone3")
	tracer.Arm(1, filetrace.Hang)
	ctx, cancel := context.WithTimeout(n.t.Context(), 500*time.Millisecond)
	defer cancel()
	over := make(chan error, 1)
	go func() { over <- give(ctx) }()
	if err := <-over; err == nil {
		n.t.Errorf("%s: it has succeeded before its fork", what)
	}
	time.Sleep(3 * time.Second) // longer than the executor waits for what it has killed
	if f, ok := tracer.Disarm(); !ok || !f.Happened {
		n.t.Errorf("%s: no fork was stopped", what)
	}
	tracer.Release()
}

// An exec that is given up before its fork does not run once the fork succeeds after all: nothing
// would wait for it, and a zombie in the container's PID namespace whose parent is outside keeps the
// container from ending.
func TestExecGivenUpBeforeItsFork(t *testing.T) {
	_, noRunc := os.Stat("/usr/sbin/runc")
	n := startWithoutCRIU(t)
	for name, with := range map[string]option{"built in": func(*wire.RunRequest, *specs.Spec) {}, "engine": withEngine} {
		for _, fast := range []bool{false, true} {
			if name == "engine" && (fast || noRunc != nil) {
				continue
			}
			b := n.run([]string{"sleep", "for-ever"}, with)
			exec := func(ctx context.Context, args ...string) error {
				files, err := n.client.Call(ctx, wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process(args...), Fast: fast}, nil)
				wire.CloseAll(files)
				return err
			}
			alone := func() bool {
				return slices.Equal(descendants(strconv.Itoa(n.cmd.Process.Pid)), []string{strconv.Itoa(b.reply.Pid)})
			}
			for _, args := range [][]string{{"exit", "0"}, {"sleep", "for-ever"}} {
				if err := exec(t.Context(), "exit", "0"); err != nil { // what is done only once is done
					t.Fatal(err)
				}
				n.stalls(name, func(ctx context.Context) error { return exec(ctx, args...) })
				if err := exec(t.Context(), "exit", "0"); err != nil { // it forks after the other one
					t.Error(err)
				}
				eventually(t, alone, "%s, fast %v, %s: left is %v", name, fast, args[0], commands(n.cmd.Process.Pid))
			}
			b.signal(unix.SIGKILL, false)
			b.wait()
			b.delete()
		}
	}
}

// A start that is given up before its fork does not run either, and its container can be started
// again.
func TestStartGivenUpBeforeItsFork(t *testing.T) {
	n := startWithoutCRIU(t)
	for _, fast := range []bool{false, true} {
		for _, args := range [][]string{{"exit", "0"}, {"sleep", "for-ever"}} {
			n.run([]string{"exit", "0"}, func(r *wire.RunRequest, _ *specs.Spec) { r.Fast = fast }).wait()
			b := n.request(args, func(r *wire.RunRequest, _ *specs.Spec) { r.Fast = fast })
			n.stalls("start", func(ctx context.Context) error {
				files, err := n.client.Call(ctx, wire.MethodRun, b.req, nil)
				wire.CloseAll(files)
				return err
			})
			eventually(t, func() bool {
				_, err := n.client.Call(t.Context(), wire.MethodDelete, wire.Ref{ID: b.id}, nil)
				return err == nil
			}, "fast %v, %s: it cannot be deleted", fast, args[0])
			if left := descendants(strconv.Itoa(n.cmd.Process.Pid)); len(left) > 0 {
				t.Errorf("fast %v, %s: left is %v", fast, args[0], commands(n.cmd.Process.Pid))
			}
			again := n.run([]string{"exit", "3"}, func(r *wire.RunRequest, _ *specs.Spec) { r.ID, r.Fast = b.id, fast })
			if e := n.waitExit(b.id); e.Code != 3 {
				t.Errorf("the retry ended with %+v", e)
			}
			again.drop()
		}
	}
}
