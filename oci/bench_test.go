package oci_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci"
)

// BenchmarkPod is one sandbox with one container, up and down.
func BenchmarkPod(b *testing.B) {
	n := newKernelNode(b)
	r := n.Open(b)
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		sb, err := r.CreateSandbox(b.Context(), oci.SandboxConfig{})
		must(err)
		must(sb.Ready(nil))
		c, _ := n.create(b, r, sb, n.Spec("sleep", "for-ever"))
		must(c.Start(b.Context()))
		must(c.Stop(b.Context(), unix.SIGTERM, 0))
		must(c.Remove(b.Context()))
		must(sb.BeginStop())
		must(sb.Unpin(b.Context()))
		must(sb.Stopped())
		must(sb.Remove(b.Context()))
	}
	must(r.Shutdown(b.Context()))
}

// BenchmarkSandbox is a sandbox alone.
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
