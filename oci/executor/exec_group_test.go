package executor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/testenv"
)

// A threaded cgroup below a container's, which KubeVirt makes for dedicated CPUs, allows no
// other cgroup beside it: execs go into the container's own.
func TestExecBesideThreadedCgroup(t *testing.T) {
	base := ""
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
			base = root
		}
	}
	if base == "" || !testenv.Root() {
		t.Skip("needs root and a cgroup v2 hierarchy at /sys/fs/cgroup or /sys/fs/cgroup/unified")
	}
	dir, err := os.MkdirTemp(base, "crisp-test-threaded-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	e := &execution{id: "session-1", c: &container{ref: wire.RunReply{Cgroups: map[string]string{"": dir}}, gone: make(chan struct{})}}
	if e.makeGroup(); e.group[""] != filepath.Join(dir, "exec-session-1") {
		t.Fatalf("without threaded cgroups: %v", e.group)
	}
	e.removeGroup()
	e.group = nil
	child := filepath.Join(dir, "housekeeping")
	if err := os.Mkdir(child, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(child) })
	if err := os.WriteFile(filepath.Join(child, "cgroup.type"), []byte("threaded"), 0); err != nil {
		t.Fatal(err)
	}
	if e.makeGroup(); e.group != nil {
		t.Errorf("beside a threaded cgroup: %v", e.group)
	}
	if entries, _ := filepath.Glob(filepath.Join(dir, "exec-*")); len(entries) > 0 {
		t.Errorf("left: %v", entries)
	}
}
