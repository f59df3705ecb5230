package executor

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/procstat"
	"github.com/crisp-cri/crisp/oci/executor/proc"
	"github.com/crisp-cri/crisp/oci/wire"
)

func newExecutor(t *testing.T) *Executor {
	t.Helper()
	dir := t.TempDir()
	x, err := New(Options{Socket: filepath.Join(dir, "executor.sock"), State: dir, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.files.lock.Close() })
	return x
}

// A crispd that starts just then may still reach an executor that has been asked to exit. A
// container started there would lose its parent a moment later, and with it its output and
// its exit code.
func TestLeavingTakesNoContainer(t *testing.T) {
	for name, end := range map[string]func(*Executor) error{"close": (*Executor).Close, "idle": (*Executor).CloseIdle} {
		t.Run(name, func(t *testing.T) {
			x := newExecutor(t)
			c, err := x.table.reserve(settings{Settings: wire.Settings{ID: "first"}}, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := end(x); !errors.Is(err, fault.WrongState) {
				t.Fatalf("left with a container that is starting: %v", err)
			}
			if _, err := x.table.reserve(settings{Settings: wire.Settings{ID: "second"}}, nil, nil); err != nil {
				t.Fatalf("the executor stays, and refuses a container: %v", err)
			}
			x.table.release(c)
			x.table.release(x.table.containers["second"])
			if err := end(x); err != nil {
				t.Fatal(err)
			}
			if _, err := x.table.reserve(settings{Settings: wire.Settings{ID: "third"}}, nil, nil); !errors.Is(err, fault.Unavailable) {
				t.Errorf("got %v", err)
			}
			if err := x.become(os.Stdin, nil); !errors.Is(err, fault.Unavailable) {
				t.Errorf("upgrade: got %v", err)
			}
			if err := end(x); err != nil {
				t.Errorf("reported twice: %v", err)
			}
		})
	}
}

// Only the executor knows the exit code of an exec. Its container may be the last one, and
// the exec may be what has ended it.
func TestLeavingTellsExecCodes(t *testing.T) {
	x := newExecutor(t)
	e := &execution{id: "e", c: &container{}, proc: &proc.Process{}, code: 7, owner: new(wire.Conn), ended: make(chan struct{}), gone: make(chan struct{})}
	close(e.ended)
	x.execs.all[e.id] = e
	if err := x.CloseIdle(); !errors.Is(err, fault.WrongState) {
		t.Fatalf("left with a code that was not asked for: %v", err)
	}
	var call wire.Call
	reply, err := x.execs.wait(t.Context(), e.owner, &call, e.id)
	if err != nil || reply.Code != 7 {
		t.Fatalf("got %v, %v", reply, err)
	}
	if err := x.CloseIdle(); !errors.Is(err, fault.WrongState) {
		t.Fatalf("left with a code that is not reported: %v", err)
	}
	if s := x.inherit(false).Execs; len(s) != 1 || !s[0].Ended || s[0].Code != 7 {
		t.Errorf("an upgrade before the code is reported hands over %+v", s)
	}
	call.Then()
	if s := x.inherit(false).Execs; len(s) != 0 {
		t.Errorf("an upgrade after it was reported hands over %+v", s)
	}
	if err := x.CloseIdle(); err != nil {
		t.Error(err)
	}
}

// An upgrade during a start must be refused, and must not leave the gate shut: no
// container's output would be read from then on, and no exit be recorded.
func TestUpgradeRefusesAStartOnItsWay(t *testing.T) {
	x := newExecutor(t)
	c, err := x.table.reserve(settings{Settings: wire.Settings{ID: "a"}}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var call wire.Call
	if err := x.upgrade(wire.UpgradeRequest{Path: "/proc/self/exe"}, &call); !errors.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
	entered := make(chan struct{})
	go func() {
		x.gate.Enter()
		defer x.gate.Leave()
		close(entered)
	}()
	select {
	case <-entered:
	case <-time.After(time.Minute):
		t.Fatal("the gate is shut")
	}
	x.table.release(c)
	if err := x.upgrade(wire.UpgradeRequest{Path: "/proc/self/exe"}, &call); err != nil {
		t.Errorf("the retry: %v", err)
	}
	if call.Then == nil {
		t.Error("a successful upgrade has nothing to do after its answer")
	}
}

// callers gets the connection of each call.
type callers chan<- *wire.Conn

func (c callers) Call(_ context.Context, from *wire.Conn, _ *wire.Call) (any, []*os.File, error) {
	c <- from
	return nil, nil, nil
}

// An exec whose client disconnects during an upgrade has no owner once the upgrade fails:
// it is killed then, and not before.
func TestUpgradeThatFailsEndsLeftExecs(t *testing.T) {
	x := newExecutor(t)
	owners := make(chan *wire.Conn, 1)
	go wire.Serve(x.files.listener, callers(owners), x.log)
	client, err := wire.Dial(t.Context(), x.opts.Socket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Call(t.Context(), wire.MethodPing, nil, nil); err != nil {
		t.Fatal(err)
	}
	owner := <-owners
	cmd := exec.Command("sleep", "3600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill() // reaped already, unless the test has failed
	e := x.execs.open(&container{settings: settings{Settings: wire.Settings{ID: "a"}}}, owner)
	if e.proc, err = proc.Open(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	x.execs.register(e)
	var call wire.Call
	if err := x.upgrade(wire.UpgradeRequest{Path: "/proc/self/exe"}, &call); err != nil {
		t.Fatal(err)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	<-owner.Done()
	time.Sleep(100 * time.Millisecond) // in which a wrong executor would end the exec
	if stat, err := procstat.Read(e.proc.PID); err != nil || stat.Ended() {
		t.Errorf("the exec has ended though the upgrade may happen: %+v, %v", stat, err)
	}
	args := os.Args
	defer func() { os.Args = args }()
	os.Args = append(slices.Clone(args), strings.Repeat("x", 1<<20)) // makes execve fail with E2BIG
	call.Then()
	select {
	case <-e.ended:
	case <-time.After(time.Minute):
		t.Fatal("the exec runs on, although it was given up")
	}
	for n := 1; n > 0; time.Sleep(time.Millisecond) {
		n = x.execs.count()
	}
}

// crispd has one connection for as long as it runs, and kubelets probe with many execs: the
// goroutine that watches the connection for an exec must end with the exec.
func TestGuardEndsWithItsExec(t *testing.T) {
	x := newExecutor(t)
	owner := new(wire.Conn) // a connection that never ends
	e := x.execs.open(&container{}, owner)
	e.proc = &proc.Process{}
	close(e.ended)
	x.execs.all[e.id] = e
	over := make(chan struct{})
	go func() {
		defer close(over)
		x.execs.guard(e, owner)
	}()
	var call wire.Call
	if _, err := x.execs.wait(t.Context(), owner, &call, e.id); err != nil {
		t.Fatal(err)
	}
	select {
	case <-over:
		t.Error("the exec is not guarded until its code is reported")
	default:
	}
	call.Then()
	select {
	case <-over:
	case <-time.After(time.Minute):
		t.Error("the exec is gone, and what guards it is not")
	}
}
