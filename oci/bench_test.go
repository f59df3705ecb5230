package oci_test

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci"
)

// BenchmarkPod makes, starts, stops and removes a sandbox with one container; each phase is
// a metric of its own.
func BenchmarkPod(b *testing.B) {
	n := newKernelNode(b)
	r := n.Open(b)
	took := make(map[string]time.Duration)
	timed := func(name string, f func() error) {
		b.Helper()
		begin := time.Now()
		if err := f(); err != nil {
			b.Fatal(err)
		}
		took[name] += time.Since(begin)
	}
	for b.Loop() {
		var sb *oci.Sandbox
		var c *oci.Container
		timed("sandbox", func() (err error) { sb, err = r.CreateSandbox(b.Context(), oci.SandboxConfig{}); return err })
		timed("ready", func() error { return sb.Ready(nil) })
		timed("create", func() error { c, _ = n.create(b, r, sb, n.Spec("sleep", "for-ever")); return nil })
		timed("start", func() error { return c.Start(b.Context()) })
		timed("stop", func() error { return c.Stop(b.Context(), unix.SIGTERM, 0) })
		timed("remove", func() error { return c.Remove(b.Context()) })
		timed("unpin", func() error { return errors.Join(sb.BeginStop(), sb.Unpin(b.Context()), sb.Stopped()) })
		timed("discard", func() error { return sb.Remove(b.Context()) })
	}
	for name, d := range took {
		b.ReportMetric(float64(d.Microseconds())/1000/float64(b.N), name+"-ms/op")
	}
	if err := r.Shutdown(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkSandbox makes and removes a sandbox without containers.
func BenchmarkSandbox(b *testing.B) {
	n := newKernelNode(b)
	r := n.Open(b)
	for b.Loop() {
		sb, err := r.CreateSandbox(b.Context(), oci.SandboxConfig{})
		if err != nil {
			b.Fatal(err)
		}
		if err := sb.Remove(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	if err := r.Shutdown(b.Context()); err != nil {
		b.Fatal(err)
	}
}
