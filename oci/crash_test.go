package oci_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/test/ocitest"
)

// life takes one sandbox and one container through all states. It continues after errors, as the
// kubelet would.
func life(b *bed) {
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	sb, err := b.r.CreateSandbox(ctx, oci.SandboxConfig{Name: "life", SharedPID: true})
	if err != nil {
		return
	}
	_ = sb.Ready([]byte("extra"))
	c, err := b.r.Create(ctx, oci.ContainerConfig{Name: "life", SandboxID: sb.ID(), Spec: ocitest.Spec("sleep", "for-ever")})
	if err != nil {
		return
	}
	if c.Start(ctx) != nil {
		return
	}
	_ = c.Stop(ctx, unix.SIGTERM, time.Second)
	_ = c.Remove(ctx)
	_ = sb.BeginStop()
	_ = sb.Unpin(ctx)
	_ = sb.Stopped()
	_ = sb.Remove(ctx)
}

// The daemon may die at any step, before or right after the step took effect, and its executor
// with it: the next daemon can continue from any state it finds, and leaves nothing behind.
// -short takes every third step.
func TestCrashAtEveryStep(t *testing.T) {
	steps, stride := 0, 1
	if testing.Short() {
		stride = 3
	}
	for _, executorToo := range []bool{false, true} {
		for _, after := range []bool{false, true} {
			for n, blown := 1, true; blown; n += stride {
				name := fmt.Sprintf("step %d, after %v, executor %v", n, after, executorToo)
				synctest.Test(t, func(t *testing.T) {
					b := &bed{T: t, m: ocitest.NewMachine(t)}
					b.r = b.m.Open(t)
					b.m.Fuse.Set(n, after)
					life(b)
					blown = b.m.Fuse.Blown()
					b.ok(b.r.Close())
					if executorToo {
						b.m.Executor.Crash()
					}
					b.m.Fuse.Set(0, false)
					b.r = b.m.Open(t)
					synctest.Wait()
					for _, c := range b.r.Containers() {
						if st := c.Status().State; st == oci.Starting || st == oci.Removing {
							t.Errorf("%s: after recovery, the container is %v", name, st)
						}
					}
					for _, sb := range b.r.Sandboxes() {
						if st := sb.State(); st == oci.SandboxRemoving {
							t.Errorf("%s: after recovery, the sandbox is %v", name, st)
						}
					}
					if err := b.r.Shutdown(t.Context()); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					b.empty()
					b.reopen()
					life(b) // a whole life works afterwards
					b.empty()
					b.ok(b.r.Close())
					b.m.Reboot()
				})
				steps++
				if t.Failed() {
					t.Fatal(name)
				}
			}
		}
	}
	if steps < 40/stride {
		t.Errorf("only %d steps: the fuse is not where the steps are", steps)
	}
}
