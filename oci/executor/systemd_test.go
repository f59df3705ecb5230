package executor_test

import (
	"os"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
)

// withScope has systemd make the container's cgroup.
func withScope(r *wire.RunRequest, s *specs.Spec) {
	r.SystemdCgroup, s.Linux.CgroupsPath = true, "system.slice:crisp-test:"+r.ID
}

// systemd removes a scope with its last process, maybe before we have read from it.
func TestSystemd(t *testing.T) {
	if !exists("/run/systemd/system") {
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
	b.delete()
	for _, dir := range b.reply.Cgroups {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("cgroup %s is left", dir)
		}
	}
}
