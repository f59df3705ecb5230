package executor_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/filetrace"
)

// stalls makes the executor's next fork wait, as under memory pressure, until release is called.
// give is called with a context that ends meanwhile, and must return an error. Before release,
// the executor has given it up as stuck, and checks are called.
func (n *node) stalls(what string, give func(ctx context.Context) error, checks ...func()) {
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
	for _, check := range checks {
		check()
	}
	tracer.Release()
}

// open returns how many of the executor's descriptors are of a file with this in its name.
func (n *node) open(file string) (count int) {
	n.t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", n.cmd.Process.Pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, e := range entries {
		if target, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.Contains(target, file) {
			count++
		}
	}
	return count
}

// A start that is stuck before its fork may still pass on the descriptors that it was given: if
// they were closed, their numbers could be those of other files by then.
func TestStuckStartKeepsItsDescriptors(t *testing.T) {
	n := startLogged(t)
	needsStatic(t)
	env := [][]byte{[]byte("PATH=/"), []byte("A=\xff")}
	const passed = "memfd:environment"
	b := n.run([]string{"sleep", "for-ever"})
	kept := func(what string) func() {
		return func() {
			if n.open(passed) != 1 {
				t.Errorf("a stuck %s has closed what it passes on", what)
			}
		}
	}
	n.stalls("exec", func(ctx context.Context) error {
		files, err := n.client.Call(ctx, wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process("exit", "0"), Env: env}, nil)
		wire.CloseAll(files)
		return err
	}, kept("exec"))
	eventually(t, func() bool { return n.open(passed) == 0 }, "the descriptors of an exec are left")
	started := n.request([]string{"exit", "0"}, func(r *wire.RunRequest, _ *specs.Spec) { r.Env, r.Fast = env, false })
	n.stalls("start", func(ctx context.Context) error {
		files, err := n.client.Call(ctx, wire.MethodRun, started.req, nil)
		wire.CloseAll(files)
		return err
	}, kept("start"))
	eventually(t, func() bool { return n.open(passed) == 0 }, "the descriptors of a start are left")
	eventually(t, func() bool {
		_, err := n.client.Call(t.Context(), wire.MethodDelete, wire.Ref{ID: started.id}, nil)
		return err == nil
	}, "the container cannot be deleted")
	b.signal(unix.SIGKILL, false)
	b.wait()
	b.delete()
}

// An exec that is given up before its fork does not run once the fork succeeds after all: nothing
// would wait for it, and a zombie in the container's PID namespace whose parent is outside keeps the
// container from ending.
func TestExecGivenUpBeforeItsFork(t *testing.T) {
	_, noRunc := os.Stat("/usr/sbin/runc")
	n := startLogged(t)
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
	n := startLogged(t)
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
