package oci_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/test/filetrace"
	"github.com/crisp-cri/crisp/test/ocitest"
)

// Each system call on a file of a sandbox or a container fails once in their life: the first,
// the second, and so on until there are no more. The retry succeeds, a daemon that is
// restarted finds what was there, and in the end nothing is left. The errors take turns.
// CRISP_NTH=full tries each error with each call; -short takes every nineteenth call.
func TestNthCallFails(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"root", "state"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	records, err := recordsAt(filepath.Join(dir, "root"))
	if err != nil {
		t.Fatal(err)
	}
	tracer := filetrace.Start(t, dir)
	errnos := []syscall.Errno{unix.EIO, unix.ENOSPC, unix.EMFILE, unix.ENOMEM}
	calls, step := 0, 1
	if testing.Short() {
		step = 19
	}
	for n := 1; !t.Failed(); n += step {
		happened := false
		for i, errno := range errnos {
			if i != n%len(errnos) && os.Getenv("CRISP_NTH") != "full" {
				continue
			}
			var f filetrace.Failure
			synctest.Test(t, func(t *testing.T) {
				m := ocitest.NewMachine(t)
				m.Root, m.State = filepath.Join(dir, "root"), filepath.Join(dir, "state")
				o := m.Options(t)
				o.Records = records
				tracer.Arm(n, errno)
				err := stubbornLife(t.Context(), o)
				f = tracer.Disarm()
				m.Reboot()
				if err == nil {
					err = nothingIn(dir)
				}
				if err != nil {
					t.Errorf("after %s: %v", f.What, err)
				}
			})
			happened = f.Happened
		}
		if !happened {
			break
		}
		calls++
	}
	t.Logf("%d calls failed", calls)
}

// nothingIn returns an error that names the leftovers of sandboxes and containers in dir,
// if any.
func nothingIn(dir string) error {
	for _, part := range []string{"root/containers", "root/sandboxes", "state/containers", "state/sandboxes"} {
		left, err := os.ReadDir(filepath.Join(dir, part))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if len(left) > 0 {
			return fmt.Errorf("in %s is left %v", part, left)
		}
	}
	return nil
}

// stubbornLife takes a sandbox and a container through their lives, and restarts the daemon
// before it removes each. It tries each step twice, as the kubelet does after a pause.
func stubbornLife(ctx context.Context, o oci.Options) error {
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	twice := func(what string, do func() error) error {
		first := do()
		if first == nil {
			return nil
		}
		if err := do(); err != nil {
			return fmt.Errorf("%s again: %w, after: %w", what, err, first)
		}
		return nil
	}
	var r *oci.Runtime
	open := func() (err error) {
		r, err = oci.Open(ctx, o)
		return err
	}
	if err := twice("open", open); err != nil {
		return err
	}
	defer func() { r.Close() }()
	var sb *oci.Sandbox
	err := twice("make sandbox", func() (err error) {
		sb, err = r.CreateSandbox(ctx, oci.SandboxConfig{Name: "sandbox"})
		return err
	})
	if err != nil {
		return err
	}
	if err := twice("ready", func() error { return sb.Ready([]byte("address")) }); err != nil {
		return err
	}
	var c *oci.Container
	run := func() (err error) {
		if c == nil {
			if c, err = r.Create(ctx, oci.ContainerConfig{Name: "container", SandboxID: sb.ID(), Spec: ocitest.Spec("sleep", "1s", "exit", "7")}); err != nil {
				return err
			}
		}
		if err = c.Start(ctx); err != nil && c.Status().State != oci.Created {
			// This container has failed: another one is made.
			if rerr := c.Remove(ctx); rerr != nil {
				return errors.Join(err, rerr, c.Remove(ctx))
			}
			c = nil
		}
		return err
	}
	if err := twice("run", run); err != nil {
		return err
	}
	<-c.Done()
	if st := c.Status(); st.ExitCode != 7 {
		return fmt.Errorf("the container has ended with %+v", st)
	}
	if err := r.Close(); err != nil {
		return err
	}
	if err := twice("open", open); err != nil {
		return err
	}
	synctest.Wait()
	if c, err = r.Container(c.ID()); err != nil {
		return fmt.Errorf("after a restart: %w", err)
	}
	if st := c.Status(); st.State != oci.Exited || st.ExitCode != 7 {
		return fmt.Errorf("after a restart the container is %+v", st)
	}
	if sb, err = r.Sandbox(sb.ID()); err != nil {
		return fmt.Errorf("after a restart: %w", err)
	}
	if string(sb.Extra()) != "address" {
		return fmt.Errorf("after a restart the sandbox has %q", sb.Extra())
	}
	if err := twice("remove container", func() error { return gone(c.Remove(ctx)) }); err != nil {
		return err
	}
	if err := twice("begin to stop", sb.BeginStop); err != nil {
		return err
	}
	if err := twice("unpin", func() error { return sb.Unpin(ctx) }); err != nil {
		return err
	}
	if err := twice("stopped", sb.Stopped); err != nil {
		return err
	}
	return twice("remove sandbox", func() error { return gone(sb.Remove(ctx)) })
}

// gone treats NotFound as a successful removal.
func gone(err error) error {
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	return err
}
