package oci_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/ocitest"
)

// bed is a fake machine with a Runtime and a Ready sandbox on it.
type bed struct {
	*testing.T
	m  *ocitest.Machine
	r  *oci.Runtime
	sb *oci.Sandbox
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{T: t, m: ocitest.NewMachine(t)}
	b.r = b.m.Open(t)
	b.sb = b.sandbox("")
	return b
}

// inBubble runs test on a bed in fake time, which passes only when all goroutines wait.
func inBubble(t *testing.T, test func(b *bed)) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		test(b)
		if err := b.r.Close(); err != nil {
			t.Error(err)
		}
		b.m.Reboot() // ends all that is left running in the bubble
	})
}

func (b *bed) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bed) sandbox(name string) *oci.Sandbox {
	b.Helper()
	sb, err := b.r.CreateSandbox(b.Context(), oci.SandboxConfig{Name: name})
	b.ok(err)
	b.ok(sb.Ready(nil))
	return sb
}

func (b *bed) create(args ...string) *oci.Container {
	b.Helper()
	c, err := b.r.Create(b.Context(), oci.ContainerConfig{SandboxID: b.sb.ID(), Spec: ocitest.Spec(args...)})
	b.ok(err)
	return c
}

func (b *bed) start(args ...string) *oci.Container {
	b.Helper()
	c := b.create(args...)
	b.ok(c.Start(b.Context()))
	return c
}

// reopen restarts the daemon.
func (b *bed) reopen() {
	b.Helper()
	b.ok(b.r.Close())
	b.r = b.m.Open(b.T)
}

func (b *bed) state(c *oci.Container, want oci.State) {
	b.Helper()
	if st := c.Status(); st.State != want {
		b.Fatalf("container is %v, want %v", st.State, want)
	}
}

// A Stop without grace must not wait out the grace period of an earlier Stop.
// kubelet does this when a pod is force-deleted while it is terminating.
func TestStopCutShort(t *testing.T) {
	inBubble(t, func(b *bed) {
		c := b.start("ignore-term", "sleep", "for-ever")
		begin := time.Now()
		first := make(chan error, 1)
		go func() { first <- c.Stop(b.Context(), unix.SIGTERM, 30*time.Second) }()
		synctest.Wait()
		b.state(c, oci.Stopping)
		b.ok(c.Stop(b.Context(), unix.SIGTERM, 0))
		b.ok(<-first)
		if waited := time.Since(begin); waited != 0 {
			b.Errorf("waited %v, want 0", waited)
		}
	})
}

// A later Stop with more patience must not prolong an earlier one.
func TestStopTakesTheEarliestDeadline(t *testing.T) {
	inBubble(t, func(b *bed) {
		c := b.start("ignore-term", "sleep", "for-ever")
		begin := time.Now()
		var all sync.WaitGroup
		for _, grace := range []time.Duration{30, 10, 20} {
			all.Go(func() {
				if err := c.Stop(b.Context(), unix.SIGTERM, grace*time.Second); err != nil {
					b.Error(err)
				}
			})
		}
		all.Wait()
		if waited := time.Since(begin); waited != 10*time.Second {
			b.Errorf("waited %v, want 10s", waited)
		}
		if n := len(b.m.Calls(wire.MethodSignal)); n != 2 {
			b.Errorf("%d signals, want one SIGTERM and one SIGKILL", n)
		}
	})
}

// The kubelet may give up its call during the grace period; the container is still killed
// at the end of that.
func TestStopSurvivesItsCaller(t *testing.T) {
	inBubble(t, func(b *bed) {
		c := b.start("ignore-term", "sleep", "for-ever")
		begin := time.Now()
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		if err := c.Stop(ctx, unix.SIGTERM, 10*time.Second); !errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("got %v", err)
		}
		b.state(c, oci.Stopping)
		<-c.Done()
		if waited := time.Since(begin); waited != 10*time.Second {
			b.Errorf("waited %v, want 10s", waited)
		}
		if st := c.Status(); st.ExitCode != 137 {
			b.Errorf("status is %+v", st)
		}
	})
}

// A process that does not die at once, because it waits for a disk, is killed repeatedly, and the
// caller's deadline still applies.
func TestKillIsRepeated(t *testing.T) {
	inBubble(t, func(b *bed) {
		c := b.start("sleep", "for-ever")
		b.m.Fail(wire.MethodSignal, fault.WrongState.Errorf("stuck"))
		ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second)
		defer cancel()
		if err := c.Stop(ctx, unix.SIGTERM, 0); !errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("got %v", err)
		}
		if n := len(b.m.Calls(wire.MethodSignal)); n < 3 {
			b.Errorf("killed %d times in 5s", n)
		}
		b.m.Fail(wire.MethodSignal, nil)
		<-c.Done()
	})
}

// The kubelet repeatedly stops a container that does not die, for days if necessary (a process
// waits for an NFS server). That accumulates neither work nor kills, and each new Stop kills at
// once.
func TestStoppedAgainAndAgain(t *testing.T) {
	inBubble(t, func(b *bed) {
		c := b.start("sleep", "for-ever")
		b.m.Fail(wire.MethodSignal, fault.WrongState.Errorf("stuck"))
		kills := func() int { return len(b.m.Calls(wire.MethodSignal)) }
		stop := func() {
			b.Helper()
			ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
			defer cancel()
			if err := c.Stop(ctx, unix.SIGTERM, 0); !errors.Is(err, context.DeadlineExceeded) {
				b.Errorf("got %v", err)
			}
		}
		for range 100 {
			was := kills()
			go stop()
			synctest.Wait()
			if kills() == was {
				b.Error("a Stop did not kill")
			}
			time.Sleep(time.Minute)
		}
		was := kills()
		time.Sleep(time.Hour)
		if n := kills() - was; n < 100 || n > 130 {
			b.Errorf("after 100 Stops it is killed %d times an hour", n)
		}
		b.m.Fail(wire.MethodSignal, nil)
		<-c.Done()
	})
}

// A Stop that comes while the container is being started takes effect as soon
// as there is something to signal.
func TestStopDuringStart(t *testing.T) {
	inBubble(t, func(b *bed) {
		c := b.create("sleep", "for-ever")
		release := b.m.Block(wire.MethodRun)
		started, stopped := make(chan error, 1), make(chan error, 1)
		go func() { started <- c.Start(b.Context()) }()
		synctest.Wait()
		b.state(c, oci.Starting)
		go func() { stopped <- c.Stop(b.Context(), unix.SIGTERM, 10*time.Second) }()
		synctest.Wait()
		b.state(c, oci.Stopping)
		// Calls that need the process are refused as WrongState, not as NotFound.
		_, execErr := c.Exec(b.Context(), oci.ExecConfig{Process: &specs.Process{Args: []string{"/testbin"}}})
		_, attachErr := c.Attach(b.Context(), false)
		for what, err := range map[string]error{"reopen": c.ReopenLog(b.Context()), "resize": c.Resize(b.Context(), 80, 25), "exec": execErr, "attach": attachErr} {
			if !errors.Is(err, fault.WrongState) {
				b.Errorf("%s of a container that was stopped during its start: %v, want WrongState", what, err)
			}
		}
		release()
		if err := <-started; err != nil {
			b.Errorf("start: %v", err)
		}
		b.ok(<-stopped)
		st := c.Status()
		if st.State != oci.Exited || st.ExitCode != 143 || st.StartedAt.IsZero() {
			b.Errorf("status is %+v", st)
		}
	})
}

// The same, when the start then fails: Stop has nothing left to wait for.
func TestStopDuringFailingStart(t *testing.T) {
	inBubble(t, func(b *bed) {
		c := b.create("exit", "0")
		b.m.Fail(wire.MethodRun, fault.Invalid.Errorf("no such thing"))
		release := b.m.Block(wire.MethodRun)
		started := make(chan error, 1)
		go func() { started <- c.Start(b.Context()) }()
		synctest.Wait()
		stopped := make(chan error, 1)
		go func() { stopped <- c.Stop(b.Context(), unix.SIGTERM, 10*time.Second) }()
		synctest.Wait()
		release()
		if err := <-started; !errors.Is(err, fault.Invalid) {
			b.Errorf("start: %v", err)
		}
		b.ok(<-stopped)
		if st := c.Status(); st.State != oci.Exited || st.ExitCode != 128 || st.Reason != "StartError" {
			b.Errorf("status is %+v", st)
		}
		b.m.Fail(wire.MethodRun, nil)
		<-b.start("exit", "0").Done() // the next container starts
	})
}

// Listeners learn that a container runs before they learn of its exit, even if it exits at
// once.
func TestEventsComeInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var kinds []oci.EventKind
		m := ocitest.NewMachine(t)
		o := m.Options(t)
		o.OnEvent = func(e oci.Event) {
			mu.Lock()
			defer mu.Unlock()
			kinds = append(kinds, e.Kind)
		}
		b := &bed{T: t, m: m, r: ocitest.Open(t, o)}
		b.sb = b.sandbox("")
		c := b.start("exit", "0")
		<-c.Done()
		b.ok(c.Remove(t.Context()))
		b.ok(b.sb.BeginStop())
		b.ok(b.sb.Unpin(t.Context()))
		b.ok(b.sb.Stopped())
		b.ok(b.sb.Remove(t.Context()))
		b.ok(b.r.Close())
		want := []oci.EventKind{
			oci.SandboxCreated, oci.ContainerCreated, oci.ContainerStarted, oci.ContainerExited,
			oci.ContainerRemoved, oci.SandboxStopped, oci.SandboxRemoved,
		}
		if len(kinds) != len(want) {
			t.Fatalf("got %v, want %v", kinds, want)
		}
		for i := range want {
			if kinds[i] != want[i] {
				t.Errorf("got %v, want %v", kinds, want)
			}
		}
	})
}

// A Stop that overlaps a Remove, and a Remove that overlaps another, all succeed.
func TestOverlappingRemoves(t *testing.T) {
	inBubble(t, func(b *bed) {
		c := b.start("ignore-term", "sleep", "for-ever")
		var all sync.WaitGroup
		all.Go(func() { b.Check(c.Stop(b.Context(), unix.SIGTERM, time.Minute)) })
		synctest.Wait()
		for range 3 {
			all.Go(func() { b.Check(c.Remove(b.Context())) })
		}
		all.Wait()
		if _, err := b.r.Container(c.ID()); !errors.Is(err, fault.NotFound) {
			b.Errorf("got %v", err)
		}
		if known := b.m.Known(); len(known) > 0 {
			b.Errorf("executor still has %v", known)
		}
	})
}

// Check is ok for other goroutines, which must not call FailNow.
func (b *bed) Check(err error) {
	b.Helper()
	if err != nil {
		b.Error(err)
	}
}

// A hanging start is killed when the grace period of its Stop is over: before there is a process,
// there is nothing to send SIGTERM to.
func TestStopEndsAStartThatHangs(t *testing.T) {
	inBubble(t, func(b *bed) {
		b.m.Executor.SlowRun(time.Hour)
		c := b.create("sleep", "1h")
		started := make(chan error, 1)
		go func() { started <- c.Start(b.Context()) }()
		synctest.Wait()
		b.state(c, oci.Starting)
		stopped := make(chan error, 1)
		go func() { stopped <- c.Stop(b.Context(), unix.SIGTERM, 10*time.Second) }()
		time.Sleep(9 * time.Second)
		if n := len(b.m.Executor.Calls(wire.MethodSignal)); n > 0 {
			b.Errorf("%d signals before the grace period was over", n)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		select {
		case err := <-stopped:
			b.ok(err)
		default:
			b.Fatal("the Stop has not returned")
		}
		if err := <-started; err == nil {
			b.Error("the start has succeeded")
		}
		b.state(c, oci.Exited)
		if st := c.Status(); st.ExitCode != 128 || st.Reason != "StartError" {
			b.Errorf("status is %+v", st)
		}
		b.m.Executor.SlowRun(0)
		b.ok(c.Remove(b.Context()))
		again := b.start("exit", "3")
		<-again.Done()
	})
}
