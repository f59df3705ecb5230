package oci_test

import (
	"context"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/oci/wire"
)

// leaving is the connection to an executor that is about to exit: it answers a few more calls and
// is then gone.
type leaving struct {
	oci.ExecutorConn
	calls atomic.Int32 // number of calls that it still answers
	gone  func()
}

func (l *leaving) Call(ctx context.Context, method string, req, reply any, send ...*os.File) ([]*os.File, error) {
	if method != wire.MethodWarm && method != wire.MethodPing && l.calls.Add(-1) < 0 { // these two come at any time
		l.gone()
		return nil, fault.Unavailable.Errorf("executor: connection lost during %s", method)
	}
	return l.ExecutorConn.Call(ctx, method, req, reply, send...)
}

// leave makes the first executors that a Runtime connects to exit after the given number of
// answers. It returns the number of executors that have exited so far.
func (b *bed) leave(o *oci.Options, executors, calls int) (left *atomic.Int32) {
	left = new(atomic.Int32)
	var reached atomic.Int32
	o.Dial = func(ctx context.Context) (oci.ExecutorConn, error) {
		conn, err := b.m.Dial(ctx)
		if err != nil || reached.Add(1) > int32(executors) {
			return conn, err
		}
		l := &leaving{ExecutorConn: conn, gone: sync.OnceFunc(func() {
			left.Add(1)
			b.m.Executor.Crash()
		})}
		l.calls.Store(int32(calls))
		return l, nil
	}
	return left
}

// atEveryCall runs test with executors that exit after no call, after one, and so on, until
// none exits; a test must make at least that many calls.
func atEveryCall(t *testing.T, least int, test func(b *bed, calls int) (left int)) {
	for calls := range 100 {
		left := 0
		t.Run(strconv.Itoa(calls), func(t *testing.T) {
			inBubble(t, func(b *bed) { left = test(b, calls) })
		})
		if t.Failed() {
			return
		}
		if left == 0 {
			if calls < least {
				t.Errorf("the test made only %d calls", calls)
			}
			return
		}
	}
	t.Error("executors leave for ever")
}

// An executor may exit at any call of a daemon that has just found it: at a shutdown of
// the machine both get the signal, and the executor waits for its last container. The
// daemon treats it as absent, and no container is affected.
func TestExecutorLeavesWhileReached(t *testing.T) {
	atEveryCall(t, 4, func(b *bed, calls int) int {
		shared, err := b.r.CreateSandbox(b.Context(), oci.SandboxConfig{Name: "shared", SharedPID: true})
		b.ok(err)
		b.ok(shared.Ready(nil))
		one, two := b.start("sleep", "1h", "exit", "7"), b.start("sleep", "1h", "exit", "8")
		b.ok(b.r.Close())
		b.m.Executor.Crash() // so that everything is handed over, which takes several calls
		o := b.m.Options(b.T)
		left := b.leave(&o, 2, calls)
		b.r, err = oci.Open(b.Context(), o)
		b.ok(err)
		synctest.Wait()
		if one, err = b.r.Container(one.ID()); err == nil {
			two, err = b.r.Container(two.ID())
		}
		b.ok(err)
		b.state(one, oci.Running)
		b.state(two, oci.Running)
		<-one.Done()
		<-two.Done()
		if one, two := one.Status(), two.Status(); one.ExitCode != 7 || two.ExitCode != 8 {
			b.Errorf("statuses are %+v and %+v, want codes 7 and 8", one, two)
		}
		sb, err := b.r.Sandbox(shared.ID())
		b.ok(err)
		if st := sb.State(); st != oci.SandboxReady {
			b.Errorf("sandbox is %v", st)
		}
		return int(left.Load())
	})
}

// The same while a daemon makes a pod: the executor that stays runs it, once.
func TestExecutorLeavesWhileAsked(t *testing.T) {
	atEveryCall(t, 5, func(b *bed, calls int) int {
		b.ok(b.r.Close())
		o := b.m.Options(b.T)
		left := b.leave(&o, 1, calls)
		var err error
		b.r, err = oci.Open(b.Context(), o)
		b.ok(err)
		b.sb, err = b.r.CreateSandbox(b.Context(), oci.SandboxConfig{Name: "shared", SharedPID: true})
		b.ok(err)
		b.ok(b.sb.Ready(nil))
		c := b.start("sleep", "1h", "exit", "7")
		if inits, runs := b.m.Calls(wire.MethodPodInit), b.m.Calls(wire.MethodRun); len(inits) != 1 || len(runs) != 1 {
			b.Errorf("ran %v and %v", inits, runs)
		}
		<-c.Done()
		if st := c.Status(); st.ExitCode != 7 {
			b.Errorf("status is %+v", st)
		}
		return int(left.Load())
	})
}

// Executors that always exit are an error, after a bounded number of tries.
func TestExecutorNeverStays(t *testing.T) {
	inBubble(t, func(b *bed) {
		c := b.start("sleep", "for-ever")
		b.ok(b.r.Close())
		o := b.m.Options(b.T)
		b.leave(&o, 1000, 1)
		r, err := oci.Open(b.Context(), o)
		if err == nil {
			r.Close()
			t.Error("opened")
		}
		b.r = b.m.Open(b.T)
		c, err = b.r.Container(c.ID())
		b.ok(err)
		b.state(c, oci.Running)
	})
}
