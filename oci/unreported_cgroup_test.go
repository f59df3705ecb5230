package oci_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/test/ocitest"
)

// An executor that is killed during a start has made a cgroup that it has not reported. It
// is removed with the container, or with the sandbox if it was for the sandbox's init.
func TestCgroupOfAStartThatWasCutShort(t *testing.T) {
	if viaSystemd() {
		t.Skip("systemd removes scopes by itself")
	}
	n := newKernelNode(t)
	o := n.options(t)
	o.PodInit = filepath.Join(n.dir, "missing")
	r := ocitest.Open(t, o)
	parent := "/" + filepath.Base(n.dir)
	plant := func(name string) {
		t.Helper()
		for _, hierarchy := range hierarchies(t) {
			dir := filepath.Join(hierarchy, parent)
			t.Cleanup(func() { os.Remove(dir) })
			if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	left := func(name string) {
		t.Helper()
		for _, hierarchy := range hierarchies(t) {
			dir := filepath.Join(hierarchy, parent, name)
			if _, err := os.Stat(dir); err == nil {
				t.Errorf("%s is left", dir)
				os.Remove(dir)
			}
		}
	}

	id := oci.NewID()
	plant(id)
	if _, err := r.CreateSandbox(t.Context(), oci.SandboxConfig{ID: id, CgroupParent: parent, SharedPID: true}); err == nil {
		t.Fatal("a sandbox with a missing init program was made")
	}
	left(id)

	sb, err := r.CreateSandbox(t.Context(), oci.SandboxConfig{CgroupParent: parent})
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Ready(nil); err != nil {
		t.Fatal(err)
	}
	cfg := oci.ContainerConfig{ID: oci.NewID(), SandboxID: sb.ID(), Spec: n.Spec("exit", "0")}
	cfg.Spec.Linux.CgroupsPath = ocitest.CgroupsPath(sb, cfg.ID)
	c, err := r.Create(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	plant(filepath.Base(cfg.Spec.Linux.CgroupsPath))
	if err := c.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	left(filepath.Base(cfg.Spec.Linux.CgroupsPath))
	for _, step := range []func() error{
		sb.BeginStop, func() error { return sb.Unpin(t.Context()) }, sb.Stopped,
		func() error { return sb.Remove(t.Context()) }, func() error { return r.Shutdown(t.Context()) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
}

// hierarchies returns the mount points of the machine's cgroup hierarchies.
func hierarchies(t *testing.T) []string {
	t.Helper()
	procs, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return []string{"/sys/fs/cgroup"}
	}
	for i, p := range procs {
		procs[i] = filepath.Dir(p)
	}
	return procs
}
