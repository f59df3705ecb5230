package executor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/testenv"
)

// withScope makes systemd make the container's cgroup, with a name that is not in the
// kernel's log yet.
func withScope(r *wire.RunRequest, s *specs.Spec) {
	r.SystemdCgroup, s.Linux.CgroupsPath = true, fmt.Sprintf("system.slice:crisp-test:%s-%d", r.ID, time.Now().UnixNano())
}

// systemd removes a scope with its last process, possibly before the executor has read from
// it.
func TestSystemd(t *testing.T) {
	if !testenv.Exists("/run/systemd/system") {
		t.Skip("needs systemd")
	}
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"}, withScope)
	if code := b.exec(wire.ExecRequest{Process: process("exit", "4")}).wait(); code != 4 {
		t.Errorf("exec ended with %d", code)
	}
	e := b.exec(wire.ExecRequest{Process: process("fork", "print", "child", "sleep", "for-ever")})
	line(t, e.files["stdout"])
	n.call(wire.MethodExecKill, wire.ExecRef{ExecID: e.ExecID}, nil)
	if code := e.wait(); code != 137 {
		t.Errorf("killed exec ended with %d", code)
	}
	n.call(wire.MethodUpdate, wire.UpdateRequest{ID: b.id, Resources: []byte(`{"cpu":{"shares":512}}`)}, nil)
	b.signal(unix.SIGKILL, true)
	if e := b.wait(); e.Code != 137 || e.OOMKilled {
		t.Errorf("exit is %+v", e)
	}
	for range 10 {
		c := n.run([]string{"eat", "200"}, withScope, withMemory(32<<20))
		if e := c.wait(); e.Code != 137 || !e.OOMKilled {
			t.Errorf("exit is %+v", e)
		}
		c.delete()
	}
	// systemd always wins against an executor that is stopped.
	c := n.run([]string{"await", "/tmp/go", "eat", "200"}, withScope, withMemory(32<<20))
	n.cmd.Process.Signal(unix.SIGSTOP)
	hasState(t, n.cmd.Process.Pid, "T")
	if err := os.WriteFile(filepath.Join(c.root, "tmp", "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return !testenv.Exists(c.reply.Cgroups[""]) }, "systemd does not remove the scope")
	n.cmd.Process.Signal(unix.SIGCONT)
	if e := c.wait(); e.Code != 137 || !e.OOMKilled {
		t.Errorf("exit is %+v", e)
	}
	b.delete()
	for _, dir := range b.reply.Cgroups {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("cgroup %s is left", dir)
		}
	}
}
