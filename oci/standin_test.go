package oci_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/test/ocitest"
)

// makeParent makes a cgroup as the kubelet does for a pod, and returns its name in requests
// to crispd and its directories.
func makeParent(t *testing.T) (parent string, dirs []string) {
	t.Helper()
	parent = "/crisptest" + oci.NewID()[:12]
	if viaSystemd() {
		parent = strings.TrimPrefix(parent, "/") + ".slice" // a plain directory that systemd does not know
	}
	all, err := kernel.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range all {
		dir := filepath.Join(h.Dir, parent)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
	}
	t.Cleanup(func() {
		for _, dir := range dirs {
			if err := os.Remove(dir); err != nil {
				t.Error(err) // not empty
			}
		}
	})
	return parent, dirs
}

// A stand-in is replaced by a new cgroup with another inode, so that watchers see it appear
// again; it is removed with the sandbox, and does not come back.
func TestStandIn(t *testing.T) {
	n := newKernelNode(t)
	r := n.Open(t)
	t.Cleanup(func() {
		if err := r.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	parent, dirs := makeParent(t)
	sb, err := r.CreateSandbox(t.Context(), oci.SandboxConfig{CgroupParent: parent})
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.RenewStandIn(); !errors.Is(err, fault.WrongState) {
		t.Errorf("stand-in of a sandbox that is not ready: %v", err)
	}
	if err := sb.Ready(nil); err != nil {
		t.Fatal(err)
	}
	if err := sb.RemoveStandIn(); err != nil {
		t.Errorf("removal of a missing stand-in: %v", err)
	}
	var inodes [2][]uint64
	for i := range inodes {
		if err := sb.RenewStandIn(); err != nil {
			t.Fatal(err)
		}
		for _, dir := range dirs {
			inodes[i] = append(inodes[i], inode(t, filepath.Join(dir, sb.ID())))
		}
	}
	for i := range dirs {
		if inodes[0][i] == inodes[1][i] {
			t.Errorf("%s: the stand-in is the same one", dirs[i])
		}
	}
	ctx := context.WithoutCancel(t.Context())
	if err := sb.BeginStop(); err != nil {
		t.Fatal(err)
	}
	if err := sb.Unpin(ctx); err != nil {
		t.Fatal(err)
	}
	if err := sb.RenewStandIn(); !errors.Is(err, fault.WrongState) {
		t.Errorf("stand-in of a sandbox that is being stopped: %v", err)
	}
	for _, dir := range dirs {
		if left, _ := filepath.Glob(filepath.Join(dir, "*"+sb.ID()+"*")); len(left) > 0 {
			t.Errorf("left: %s", left)
		}
	}
}

// A sandbox with a cgroup of its own name needs no stand-in.
func TestNoStandIn(t *testing.T) {
	n := newKernelNode(t)
	r := n.Open(t)
	t.Cleanup(func() {
		if err := r.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for name, cfg := range map[string]oci.SandboxConfig{"own cgroup": {}, "own cgroup, with an init": {SharedPID: true}} {
		sb, err := r.CreateSandbox(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := sb.Ready(nil); err != nil {
			t.Fatal(err)
		}
		if err := sb.RenewStandIn(); !errors.Is(err, fault.Invalid) || sb.HasStandIn() {
			t.Errorf("%s: %v", name, err)
		}
		if err := sb.RemoveStandIn(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// The path of a container's cgroup is relative to the hierarchy's mount, as programs that
// look below /sys/fs/cgroup need it.
func TestCgroupPath(t *testing.T) {
	m := ocitest.NewMachine(t)
	r := m.Open(t)
	sb, err := r.CreateSandbox(t.Context(), oci.SandboxConfig{CgroupParent: "/kubepods/pod1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Ready(nil); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/kubepods/pod1/ID":                      "/kubepods/pod1/ID",
		"kubepods-burstable-pod1.slice:crisp:ID": "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/crisp-ID.scope",
		"-no-.slice:crisp:ID":                    "",
	} {
		spec := m.Spec("exit", "0")
		spec.Linux.CgroupsPath = path
		c, err := r.Create(t.Context(), oci.ContainerConfig{SandboxID: sb.ID(), Spec: spec})
		if err != nil {
			t.Fatal(err)
		}
		if got := c.CgroupPath(); got != want {
			t.Errorf("%s is at %q, want %q", path, got, want)
		}
	}
}
