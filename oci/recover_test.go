package oci_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/userns"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/ocitest"
)

// statusFile returns the path of a container's status.
func (b *bed) statusFile(c *oci.Container) string {
	return filepath.Join(b.m.State, "containers", c.ID(), "status.json")
}

// spoil replaces the content of a file, without the daemon's knowledge; "" removes the
// file.
func (b *bed) spoil(path, content string) {
	b.Helper()
	if content == "" {
		b.ok(os.Remove(path))
		return
	}
	b.ok(os.WriteFile(path, []byte(content), 0o600))
}

// What a crash leaves of a container is recovered state by state, as recover.go says.
func TestRecover(t *testing.T) {
	const lost = 255
	tests := []struct {
		name   string
		script []string // nil if the container is not started
		spoil  func(b *bed, c *oci.Container)
		want   oci.State
		code   int32 // of an Exited container
		reason string
	}{
		{"created", nil, nil, oci.Created, 0, ""},
		{"starting, and it runs", []string{"sleep", "for-ever"},
			func(b *bed, c *oci.Container) { b.spoil(b.statusFile(c), `{"State":"starting"}`) }, oci.Running, 0, ""},
		{"starting, and it has ended", []string{"exit", "7"},
			func(b *bed, c *oci.Container) { b.spoil(b.statusFile(c), `{"State":"starting"}`) }, oci.Exited, 7, "Error"},
		{"starting, and the executor does not know it", nil,
			func(b *bed, c *oci.Container) { b.spoil(b.statusFile(c), `{"State":"starting"}`) }, oci.Exited, lost, "Unknown"},
		{"stopped while starting", []string{"sleep", "for-ever"},
			func(b *bed, c *oci.Container) { b.spoil(b.statusFile(c), `{"State":"stopping"}`) }, oci.Running, 0, ""},
		{"running", []string{"sleep", "for-ever"}, nil, oci.Running, 0, ""},
		{"running, and it ended meanwhile", []string{"sleep", "1s", "exit", "3"},
			func(b *bed, c *oci.Container) { time.Sleep(2 * time.Second) }, oci.Exited, 3, "Error"},
		{"running, and its exit record is damaged", []string{"sleep", "1s", "exit", "3"},
			func(b *bed, c *oci.Container) {
				time.Sleep(2 * time.Second)
				b.spoil(filepath.Join(b.m.Root, "containers", c.ID(), "exit.json"), "{")
			}, oci.Exited, 3, "Error"},
		{"running, and all who knew are dead", []string{"sleep", "1s", "exit", "3"},
			func(b *bed, c *oci.Container) {
				b.m.Executor.Crash()
				time.Sleep(2 * time.Second)
			}, oci.Exited, lost, "Unknown"},
		{"running, status lost", []string{"sleep", "for-ever"},
			func(b *bed, c *oci.Container) { b.spoil(b.statusFile(c), "") }, oci.Running, 0, ""},
		{"running, status damaged", []string{"sleep", "for-ever"},
			func(b *bed, c *oci.Container) { b.spoil(b.statusFile(c), `{"State":"jumping"}`) }, oci.Running, 0, ""},
		{"exited", []string{"exit", "0"}, nil, oci.Exited, 0, "Completed"},
		{"exited, status lost", []string{"exit", "5"},
			func(b *bed, c *oci.Container) { b.spoil(b.statusFile(c), "") }, oci.Exited, 5, "Error"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(b *bed) {
				c := b.create(tt.script...)
				if tt.script != nil {
					b.ok(c.Start(b.Context()))
					synctest.Wait()
				}
				before := c.Status()
				b.ok(b.r.Close())
				if tt.spoil != nil {
					tt.spoil(b, c)
				}
				b.r = b.m.Open(b.T)
				synctest.Wait()
				c, err := b.r.Container(c.ID())
				b.ok(err)
				st := c.Status()
				if st.State != tt.want || st.State == oci.Exited && (st.ExitCode != tt.code || st.Reason != tt.reason) {
					b.Fatalf("status was %+v, is %+v", before, st)
				}
				switch st.State {
				case oci.Created:
					b.ok(c.Start(b.Context()))
				case oci.Running:
					if st.Pid != before.Pid || !st.StartedAt.Equal(before.StartedAt) {
						b.Errorf("status was %+v, is %+v", before, st)
					}
					b.ok(c.Stop(b.Context(), unix.SIGTERM, time.Second))
					b.state(c, oci.Exited)
				case oci.Exited:
					<-c.Done()
					if st.FinishedAt.IsZero() || st.FinishedAt.Before(st.StartedAt) {
						b.Errorf("status is %+v", st)
					}
				}
				b.ok(c.Remove(b.Context()))
			})
		})
	}
}

// A container whose removal was interrupted is gone after the next start of the daemon; one
// that was being stopped is stopped by the next Stop.
func TestRecoverRemovingAndStopping(t *testing.T) {
	inBubble(t, func(b *bed) {
		removing, stopping := b.start("exit", "0"), b.start("ignore-term", "sleep", "for-ever")
		<-removing.Done()
		b.m.Fail(wire.MethodDelete, fault.Internal.Errorf("no"))
		if err := removing.Remove(b.Context()); err == nil {
			b.Fatal("removed")
		}
		b.state(removing, oci.Removing)
		ctx, cancel := context.WithCancel(b.Context())
		cancel()
		if err := stopping.Stop(ctx, unix.SIGTERM, time.Hour); !errors.Is(err, context.Canceled) {
			b.Fatal(err)
		}
		b.m.Fail(wire.MethodDelete, nil)
		b.reopen()
		if _, err := b.r.Container(removing.ID()); !errors.Is(err, fault.NotFound) {
			b.Errorf("got %v", err)
		}
		c, err := b.r.Container(stopping.ID())
		b.ok(err)
		b.state(c, oci.Stopping)
		b.ok(c.Stop(b.Context(), unix.SIGTERM, time.Second))
		if st := c.Status(); st.ExitCode != 137 {
			b.Errorf("status is %+v", st)
		}
	})
}

// When the daemon dies, a start in the executor continues. If the next daemon took the
// container for lost, that process would run unseen, beside the one that replaces it.
func TestRecoverStartInFlight(t *testing.T) {
	for _, daemonToo := range []bool{true, false} {
		inBubble(t, func(b *bed) {
			b.m.SlowRun(time.Second)
			c := b.create("sleep", "for-ever")
			started := make(chan error, 1)
			go func() { started <- c.Start(b.Context()) }()
			synctest.Wait()
			b.state(c, oci.Starting)
			if daemonToo {
				b.reopen()
				if err := <-started; !errors.Is(err, fault.Unavailable) {
					b.Errorf("start during which the daemon or its executor died: %v", err)
				}
			} else {
				b.m.CutConnections()
				b.ok(<-started)
			}
			c, err := b.r.Container(c.ID())
			b.ok(err)
			time.Sleep(2 * time.Second)
			b.state(c, oci.Running)
			b.ok(c.Stop(b.Context(), unix.SIGTERM, 0))
			if n := len(b.m.Calls(wire.MethodRun)); n != 1 {
				b.Errorf("run %d times", n)
			}
		})
	}
}

// An executor that dies during a start loses it; its successor starts the container again.
func TestStartOutlivesExecutor(t *testing.T) {
	inBubble(t, func(b *bed) {
		release := b.m.Block(wire.MethodRun)
		defer release()
		c := b.create("exit", "3")
		started := make(chan error, 1)
		go func() { started <- c.Start(b.Context()) }()
		synctest.Wait()
		b.m.Executor.Crash()
		synctest.Wait()
		release()
		b.ok(<-started)
		<-c.Done()
		if st := c.Status(); st.ExitCode != 3 || st.StartedAt.IsZero() {
			b.Errorf("status is %+v", st)
		}
	})
}

// After a reboot, exited containers keep their exit code, those that ran are reported as
// lost, and no sandbox is ready, whatever is left below State on a disk.
func TestReboot(t *testing.T) {
	inBubble(t, func(b *bed) {
		ended, running, created := b.start("exit", "7"), b.start("sleep", "for-ever"), b.create("exit", "0")
		<-ended.Done()
		b.ok(b.r.Close())
		b.m.Reboot()
		o := b.m.Options(b.T)
		o.Rebooted = true
		b.r = ocitest.Open(b.T, o)
		for _, tt := range []struct {
			c      *oci.Container
			code   int32
			reason string
		}{{ended, 7, "Error"}, {running, 255, "Reboot"}, {created, 255, "Reboot"}} {
			c, err := b.r.Container(tt.c.ID())
			b.ok(err)
			if st := c.Status(); st.State != oci.Exited || st.ExitCode != tt.code || st.Reason != tt.reason || st.FinishedAt.IsZero() {
				b.Errorf("status is %+v, want code %d, %s", st, tt.code, tt.reason)
			}
		}
		sb, err := b.r.Sandbox(b.sb.ID())
		b.ok(err)
		if sb.State() != oci.SandboxNotReady {
			b.Errorf("sandbox is %v", sb.State())
		}
		b.reopen() // an ordinary restart keeps all of that
		c, err := b.r.Container(running.ID())
		b.ok(err)
		if st := c.Status(); st.Reason != "Reboot" {
			b.Errorf("status is %+v", st)
		}
		b.ok(b.r.Shutdown(b.Context()))
		b.empty()
	})
}

// A reboot ends the pods of shims as it does others, and their records go.
func TestRebootEndsShims(t *testing.T) {
	inBubble(t, func(b *bed) {
		ctx := b.Context()
		sb, err := b.r.CreateSandbox(ctx, oci.SandboxConfig{Hostname: "pod", Shim: &oci.Shim{Path: "/usr/bin/containerd-shim-x-v1"}})
		b.ok(err)
		b.ok(sb.StartShim(ctx, b.m.Spec("sleep", "for-ever"), nil))
		b.ok(sb.Ready(nil))
		cfg := oci.ContainerConfig{ID: oci.NewID(), SandboxID: sb.ID(), Spec: b.m.Spec("sleep", "for-ever")}
		cfg.Spec.Linux.CgroupsPath = ocitest.CgroupsPath(sb, cfg.ID)
		c, err := b.r.Create(ctx, cfg)
		b.ok(err)
		b.ok(c.Start(ctx))
		b.ok(b.r.Close())
		b.m.Reboot()
		o := b.m.Options(b.T)
		o.Rebooted = true
		b.r = ocitest.Open(b.T, o)
		c, err = b.r.Container(c.ID())
		b.ok(err)
		if st := c.Status(); st.State != oci.Exited || st.ExitCode != 255 || st.Reason != "Reboot" {
			b.Errorf("status is %+v", st)
		}
		sb, err = b.r.Sandbox(sb.ID())
		b.ok(err)
		if sb.State() != oci.SandboxNotReady || sb.Config().Shim == nil {
			b.Errorf("sandbox is %v, with shim %+v", sb.State(), sb.Config().Shim)
		}
		b.ok(b.r.Shutdown(ctx))
		b.empty()
	})
}

// A sandbox keeps its user namespace over a restart of the daemon, is not ready if that is
// missing, and does not get another after a reboot.
func TestUserNamespaceSurvives(t *testing.T) {
	inBubble(t, func(b *bed) {
		ids := userns.Map{UID: userns.Range{Host: 1000, Length: 10}, GID: userns.Range{Host: 2000, Length: 10}}
		ready := func(name string) string {
			sb, err := b.r.CreateSandbox(b.Context(), oci.SandboxConfig{Name: name, IDs: &ids, SharedPID: true})
			b.ok(err)
			b.ok(sb.Ready(nil))
			return sb.ID()
		}
		kept, robbed := ready("kept"), ready("robbed")
		check := func(id string, want oci.SandboxState) {
			b.Helper()
			sb, err := b.r.Sandbox(id)
			b.ok(err)
			if path := sb.NamespacePath("user"); sb.State() != want || path == "" || *sb.Config().IDs != ids {
				b.Errorf("sandbox %s is %v in the user namespace %q of %v, want %v", sb.Config().Name, sb.State(), path, sb.Config().IDs, want)
			}
		}
		sb, err := b.r.Sandbox(robbed)
		b.ok(err)
		b.ok(b.m.Host.Unpin(oci.Pins{Dir: sb.RunDir()}))
		b.reopen()
		check(kept, oci.SandboxReady)
		check(robbed, oci.SandboxNotReady)

		b.ok(b.r.Close())
		b.m.Reboot()
		o := b.m.Options(b.T)
		o.Rebooted = true
		b.r = ocitest.Open(b.T, o)
		check(kept, oci.SandboxNotReady)
		b.ok(b.r.Shutdown(b.Context()))
		b.empty()
	})
}

// Names and creation times are unique, also over restarts.
func TestNamesAndTimes(t *testing.T) {
	inBubble(t, func(b *bed) {
		one := b.sandbox("one")
		if _, err := b.r.CreateSandbox(b.Context(), oci.SandboxConfig{Name: "one"}); !errors.Is(err, fault.Exists) {
			b.Errorf("got %v", err)
		}
		cfg := oci.ContainerConfig{Name: "one", SandboxID: one.ID(), Spec: ocitest.Spec("exit", "0")}
		c, err := b.r.Create(b.Context(), cfg)
		b.ok(err)
		b.reopen()
		two := b.sandbox("two")
		cfg.SandboxID = two.ID()
		if _, err := b.r.Create(b.Context(), cfg); !errors.Is(err, fault.Exists) {
			b.Errorf("got %v", err)
		}
		for range 10 { // at one instant of fake time
			b.sandbox("")
		}
		var last time.Time
		for _, sb := range b.r.Sandboxes() {
			if !sb.CreatedAt().After(last) {
				b.Errorf("created at %v after %v", sb.CreatedAt(), last)
			}
			last = sb.CreatedAt()
		}
		if found, ok := b.r.SandboxByName("one"); !ok || found.ID() != one.ID() {
			b.Error("sandbox has lost its name")
		}
		c, err = b.r.Container(c.ID()[:32])
		b.ok(err)
		b.ok(c.Remove(b.Context()))
		_, err = b.r.Create(b.Context(), cfg) // the name is free again
		b.ok(err)
		if _, err := b.r.Container(""); !errors.Is(err, fault.NotFound) {
			b.Errorf("got %v", err)
		}
	})
}

// If the clock was years ahead when an object was made, later objects do not all get that time:
// kubelets remove dead containers by age. The last attempt of a container is still the newest.
func TestClockThatWasAhead(t *testing.T) {
	inBubble(t, func(b *bed) {
		b.sandbox("web_ns_uid_0")
		_, err := b.r.Create(b.Context(), oci.ContainerConfig{Name: "c_web_ns_uid_0", SandboxID: b.sb.ID(), Spec: ocitest.Spec("exit", "0")})
		b.ok(err)
		ahead := time.Now().AddDate(70, 0, 0)
		records := b.m.Options(t).Records
		for _, kind := range []string{"sandboxes", "containers"} {
			ids, err := records.IDs(kind)
			b.ok(err)
			for _, id := range ids {
				var rec map[string]any
				b.ok(records.Load(kind, id, &rec))
				rec["CreatedAt"] = ahead
				b.ok(records.Keep(kind, id, rec))
			}
		}
		b.reopen()

		isNow := func(what string, at time.Time) {
			if at.Before(time.Now()) || at.After(time.Now().Add(time.Minute)) {
				b.Errorf("%s was created at %v, and it is %v", what, at, time.Now())
			}
		}
		for range 3 {
			isNow("a sandbox without a name", b.sandbox("").CreatedAt())
		}
		other := b.sandbox("other_ns_uid_0")
		isNow("a sandbox", other.CreatedAt())
		next := b.sandbox("web_ns_uid_1")
		if !next.CreatedAt().After(ahead) {
			b.Errorf("the second attempt was made at %v, the first one at %v", next.CreatedAt(), ahead)
		}
		for name, isNext := range map[string]bool{"c_web_ns_uid_1": true, "d_web_ns_uid_0": false, "c_web_ns_uid_x_0": false} {
			c, err := b.r.Create(b.Context(), oci.ContainerConfig{Name: name, SandboxID: next.ID(), Spec: ocitest.Spec("exit", "0")})
			b.ok(err)
			if !isNext {
				isNow(name, c.CreatedAt())
			} else if !c.CreatedAt().After(ahead) {
				b.Errorf("the second attempt was made at %v, the first one at %v", c.CreatedAt(), ahead)
			}
		}
	})
}

// IDs may be shortened as long as they are unambiguous.
func TestPrefix(t *testing.T) {
	inBubble(t, func(b *bed) {
		for _, id := range []string{"abc1", "abc2", "abc"} {
			_, err := b.r.CreateSandbox(b.Context(), oci.SandboxConfig{ID: id})
			b.ok(err)
		}
		if _, err := b.r.Sandbox("ab"); !errors.Is(err, fault.Invalid) {
			b.Errorf("ambiguous prefix: %v", err)
		}
		if sb, err := b.r.Sandbox("abc"); err != nil || sb.ID() != "abc" {
			b.Errorf("full ID that is a prefix of others: %v", err)
		}
		if _, err := b.r.Sandbox("x"); !errors.Is(err, fault.NotFound) {
			b.Errorf("unknown prefix: %v", err)
		}
		if len(b.r.Sandboxes()) != 1 {
			b.Error("sandboxes that are being created are listed")
		}
	})
}

// A lost record takes everything of its object along: processes, pins, files.
func TestLostRecords(t *testing.T) {
	inBubble(t, func(b *bed) {
		kept := b.sb
		keptC := b.start("sleep", "for-ever")
		b.sb = b.sandbox("lost")
		orphan, lost := b.start("sleep", "for-ever"), b.start("sleep", "for-ever")
		b.ok(b.r.Close())
		b.ok(os.Remove(filepath.Join(b.m.Root, "sandboxes", b.sb.ID(), "record.json")))
		b.ok(os.Remove(filepath.Join(b.m.Root, "containers", lost.ID(), "record.json")))
		b.r = b.m.Open(b.T)
		synctest.Wait()
		if n := b.m.Alive(lost.ID()); n != 0 {
			b.Errorf("%d processes of a container without a record run", n)
		}
		if n := b.m.Alive(keptC.ID()); n != 1 {
			b.Errorf("%d processes of an undamaged container, want 1", n)
		}
		if left := b.m.Left(); len(left) != 2 {
			b.Errorf("left are %v, want pins and cgroup of %s", left, kept.ID())
		}
		c, err := b.r.Container(orphan.ID()) // the sandbox is gone, the container is not
		b.ok(err)
		b.state(c, oci.Running)
		b.ok(c.Remove(b.Context()))
		b.sandbox("lost")
		b.ok(b.r.Shutdown(b.Context()))
		b.empty()
	})
}

// What is left of a Create that could not be undone goes with the next Open, if its sandbox has
// gone: no client can see to which pod it belonged, and it can never start.
func TestCreatedWithoutSandbox(t *testing.T) {
	inBubble(t, func(b *bed) {
		b.sb = b.sandbox("gone")
		c := b.create()
		b.ok(b.r.Close())
		b.ok(os.RemoveAll(filepath.Join(b.m.Root, "sandboxes", b.sb.ID())))
		for range 2 { // the second finds nothing more to do
			b.r = b.m.Open(b.T)
			if _, err := b.r.Container(c.ID()); !errors.Is(err, fault.NotFound) {
				b.Errorf("container without a sandbox: %v, want NotFound", err)
			}
			b.ok(b.r.Close())
		}
		for _, dir := range []string{b.m.Root, b.m.State} {
			if _, err := os.Stat(filepath.Join(dir, "containers", c.ID())); !errors.Is(err, fs.ErrNotExist) {
				b.Errorf("its directory in %s: %v", dir, err)
			}
		}
		b.r = b.m.Open(b.T)
		b.ok(b.r.Shutdown(b.Context()))
	})
}

// A sandbox whose creation was interrupted is NotReady: its record has the network, which
// its removal must take down first.
func TestRecoverSandboxes(t *testing.T) {
	inBubble(t, func(b *bed) {
		creating, err := b.r.CreateSandbox(b.Context(), oci.SandboxConfig{Name: "creating", Extra: []byte("x")})
		b.ok(err)
		stopping, unpinned, removing := b.sandbox("stopping"), b.sandbox("unpinned"), b.sandbox("removing")
		b.ok(stopping.BeginStop())
		b.ok(removing.BeginStop())
		b.ok(removing.Stopped())
		b.m.FailHost("unpin", fault.Internal.Errorf("no"))
		if removing.Remove(b.Context()) == nil {
			b.Fatal("removed")
		}
		b.m.FailHost("unpin", nil)
		b.ok(b.m.Host.Unpin(oci.Pins{Dir: unpinned.RunDir()})) // by another program
		b.reopen()
		for sb, want := range map[*oci.Sandbox]oci.SandboxState{
			b.sb: oci.SandboxReady, creating: oci.SandboxNotReady, stopping: oci.SandboxStopping, unpinned: oci.SandboxNotReady,
		} {
			again, err := b.r.Sandbox(sb.ID())
			b.ok(err)
			if again.State() != want || string(again.Extra()) != string(sb.Extra()) {
				b.Errorf("sandbox %s is %v with %q, want %v with %q",
					sb.Config().Name, again.State(), again.Extra(), want, sb.Extra())
			}
		}
		if _, err := b.r.Sandbox(removing.ID()); !errors.Is(err, fault.NotFound) {
			b.Errorf("got %v", err)
		}
		b.ok(b.r.Shutdown(b.Context()))
		b.empty()
	})
}

// empty fails the test if the machine has any leftovers of the runtime.
func (b *bed) empty() {
	b.Helper()
	left := append(b.m.Left(), b.m.Known()...)
	for _, dir := range []string{b.m.Root, b.m.State} {
		for _, kind := range []string{"containers", "sandboxes"} {
			entries, err := os.ReadDir(filepath.Join(dir, kind))
			b.ok(err)
			for _, e := range entries {
				left = append(left, filepath.Join(dir, kind, e.Name()))
			}
		}
	}
	if len(left) > 0 {
		b.Errorf("left behind: %v", left)
	}
}

// No cgroup of the other driver is left after a change of the driver, or after a wipe that
// did not know the instance's configuration.
func TestDriverChanged(t *testing.T) {
	for _, was := range []bool{false, true} {
		inBubble(t, func(b *bed) {
			b.ok(b.r.Shutdown(b.Context()))
			b.ok(b.r.Close())
			o := b.m.Options(b.T)
			o.SystemdCgroup = was
			b.r = ocitest.Open(b.T, o)
			b.sb = b.sandbox("")
			b.start("sleep", "for-ever")
			b.ok(b.r.Close())
			o.SystemdCgroup = !was
			b.r = ocitest.Open(b.T, o)
			b.ok(b.r.Shutdown(b.Context()))
			b.empty()
		})
	}
}

// Each OOM kill is reported once: a new executor knows what earlier ones have reported, and
// reports the rest.
func TestKillsAreReportedOnce(t *testing.T) {
	inBubble(t, func(b *bed) {
		b.ok(b.r.Close())
		o, kills := b.m.Options(b.T), 0
		o.OnEvent = func(e oci.Event) {
			if e.Kind == oci.ContainerOOM {
				kills++
			}
		}
		b.r = ocitest.Open(b.T, o)
		b.sb = b.sandbox("")
		c := b.start("sleep", "for-ever")
		is := func(want int, when string) {
			b.Helper()
			if synctest.Wait(); kills != want {
				b.Errorf("%s: %d kills were reported, want %d", when, kills, want)
			}
		}
		b.m.KillForMemory(c.ID())
		is(1, "a kill")
		b.m.Executor.Crash()
		time.Sleep(time.Minute)
		is(1, "the executor died")
		b.ok(b.r.Close())
		b.m.Executor.Crash()
		b.r = ocitest.Open(b.T, o)
		is(1, "both died")
		b.ok(b.r.Close())
		b.m.Executor.Crash()
		b.m.KillForMemory(c.ID())
		b.r = ocitest.Open(b.T, o)
		is(2, "a kill while both were dead")
	})
}
