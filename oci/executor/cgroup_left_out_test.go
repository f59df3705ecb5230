package executor_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
)

// On a hybrid host libcontainer ignores a v2 cgroup that cannot be made. No exec would work
// in such a container, and the processes that it leaves would not be found: its start
// fails, and succeeds once the cgroup can be made.
func TestCgroupThatCannotBeMade(t *testing.T) {
	if !cgroups.IsCgroup2HybridMode() {
		t.Skip("needs a v2 hierarchy beside those of v1")
	}
	n := start(t)
	parent := n.cgroup + "/full"
	dir := filepath.Join("/sys/fs/cgroup/unified", parent)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	limit := filepath.Join(dir, "cgroup.max.descendants")
	if err := os.WriteFile(limit, []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	below := func(r *wire.RunRequest, s *specs.Spec) { s.Linux.CgroupsPath = parent + "/" + r.ID }
	b := n.request([]string{"sleep", "for-ever"}, below)
	n.fails(nil, wire.MethodRun, b.req)
	if err := os.WriteFile(limit, []byte("max"), 0); err != nil {
		t.Fatal(err)
	}
	b = n.run([]string{"sleep", "for-ever"}, below)
	if code := b.exec(wire.ExecRequest{Process: process("exit", "3")}).wait(); code != 3 {
		t.Errorf("exec ended with %d", code)
	}
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(b.reply.Pid), "cgroup"))
	if err != nil || !strings.Contains(string(text), "0::") || !strings.Contains(string(text), "/full/"+b.id+"\n") {
		t.Errorf("%v: it is in\n%s", err, text)
	}
	b.signal(unix.SIGKILL, true)
	b.wait()
	n.call(wire.MethodDelete, wire.Ref{ID: b.id}, nil)
	dirs, err := filepath.Glob("/sys/fs/cgroup/*" + parent)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	}
}
