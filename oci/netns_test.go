package oci_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci"
)

// isNSFS reports whether a namespace is mounted at path.
func isNSFS(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// openShared is Open by a release that pins network namespaces in a directory of their own;
// n.Open is by an older one.
func (n *kernelNode) openShared(t *testing.T) *oci.Runtime {
	t.Helper()
	o := n.options(t)
	o.NetNSDir = filepath.Join(n.state, "netns")
	r, err := oci.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A running pod keeps its network namespace when crispd is upgraded to a release that pins
// network namespaces elsewhere, takes new containers, and leaves nothing when it is
// removed. A namespace that such a release has made is found by the older one.
func TestRunningPodKeepsItsNetworkNamespace(t *testing.T) {
	n := newKernelNode(t)
	old := n.Open(t)
	before, err := old.CreateSandbox(t.Context(), oci.SandboxConfig{Name: "before"})
	if err != nil {
		t.Fatal(err)
	}
	if err := before.Ready(nil); err != nil {
		t.Fatal(err)
	}
	path := before.NetNS()
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}

	r := n.openShared(t)
	sb, err := r.Sandbox(before.ID())
	if err != nil {
		t.Fatal(err)
	}
	if sb.State() != oci.SandboxReady || sb.NetNS() != path || !isNSFS(path) {
		t.Errorf("the pod is %s, its network namespace at %s, want %s", sb.State(), sb.NetNS(), path)
	}
	after, err := r.CreateSandbox(t.Context(), oci.SandboxConfig{Name: "after"})
	if err != nil {
		t.Fatal(err)
	}
	if err := after.Ready(nil); err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(n.state, "netns", "crisp-"+after.ID()); after.NetNS() != want || !isNSFS(want) {
		t.Errorf("the network namespace is at %s, want %s", after.NetNS(), want)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}

	back := n.Open(t)
	if sb, err := back.Sandbox(after.ID()); err != nil || sb.State() != oci.SandboxReady || !isNSFS(sb.NetNS()) {
		t.Errorf("the older release does not find the network namespace (err %v)", err)
	}
	if err := back.Close(); err != nil {
		t.Fatal(err)
	}

	r = n.openShared(t)
	for _, sb := range r.Sandboxes() {
		netNS := sb.NetNS()
		if err := errors.Join(sb.BeginStop(), sb.Unpin(t.Context()), sb.Stopped(), sb.Remove(t.Context())); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(netNS); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there (err %v)", netNS, err)
		}
	}
	if err := errors.Join(r.Shutdown(t.Context()), r.Close()); err != nil {
		t.Error(err)
	}
}

// A network namespace of crispd's without a record is removed; those of other programs in
// the same directory are not.
func TestStrayNetworkNamespaceIsSwept(t *testing.T) {
	n := newKernelNode(t)
	r := n.openShared(t)
	sb, err := r.CreateSandbox(t.Context(), oci.SandboxConfig{Name: "lost"})
	if err != nil {
		t.Fatal(err)
	}
	netNS := sb.NetNS()
	foreign := filepath.Join(n.state, "netns", "cni-1234")
	if err := os.WriteFile(foreign, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(netNS, foreign, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	// Remove all traces of the namespace, and its directory below the state.
	dir := filepath.Join(n.state, "sandboxes", sb.ID())
	for _, pin := range []string{"shm", "ns/uts", "ns/ipc"} {
		if err := unix.Unmount(filepath.Join(dir, pin), unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{dir, filepath.Join(n.root, "sandboxes", sb.ID())} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	r = n.openShared(t)
	if _, err := os.Lstat(netNS); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there (err %v)", netNS, err)
	}
	if !isNSFS(foreign) {
		t.Errorf("%s is gone, which is another program's", foreign)
	}
	if err := unix.Unmount(foreign, unix.MNT_DETACH); err != nil {
		t.Error(err)
	}
	if err := errors.Join(r.Shutdown(t.Context()), r.Close()); err != nil {
		t.Error(err)
	}
}
