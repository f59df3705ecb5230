package executor_test

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
)

// beside puts a container into the PID namespace of b.
func beside(b *box) option {
	return func(_ *wire.RunRequest, s *specs.Spec) {
		s.Linux.Namespaces[0].Path = fmt.Sprintf("/proc/%d/ns/pid", b.reply.Pid)
	}
}

// kinds runs a container of each kind by which execs are told apart.
func (n *node) kinds(args ...string) map[string]*box {
	n.t.Helper()
	own := n.run(args)
	all := map[string]*box{"own PID namespace": own, "shared PID namespace": n.run(args, beside(own)), "host's PID namespace": n.run(args, withHostPID)}
	if _, err := os.Stat("/usr/sbin/runc"); err == nil {
		all["engine"] = n.run(args, withEngine)
	}
	return all
}

// Programs read their limits in their own cgroup, and monitors find the container in its path: on
// cgroup v2 an exec is in the container's own.
func TestExecInItsContainersCgroup(t *testing.T) {
	n := start(t)
	for name, b := range n.kinds("sleep", "for-ever") {
		e := b.exec(wire.ExecRequest{Process: process("print", "up", "sleep", "for-ever")})
		until(t, e.files["stdout"], "up")
		mine, its := cgroupLines(t, b.reply.Pid), cgroupLines(t, e.Pid)
		for controller, dir := range mine {
			apart := controller == "freezer"
			if cgroups.IsCgroup2UnifiedMode() {
				apart = name == "host's PID namespace"
			}
			if got := its[controller]; got != dir && !(apart && strings.HasPrefix(got, dir+"/exec-")) {
				t.Errorf("%s: an exec is in the cgroup %s of %q, its container in %s", name, got, controller, dir)
			}
		}
		n.call(wire.MethodExecKill, wire.ExecRef{ExecID: e.ExecID}, nil)
		e.wait()
	}
}

func cgroupLines(t *testing.T, pid int) map[string]string {
	t.Helper()
	in, err := cgroups.ParseCgroupFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// The kill of an exec takes its whole session along, also what has lost its parents, and when the
// first process has ended before. What the container has started itself stays.
func TestExecKillTakesItsSession(t *testing.T) {
	n := start(t)
	for name, b := range n.kinds("fork", "print", "up", "sleep", "for-ever") {
		b.says("up")
		ours := len(b.members())
		// The first process and its child end; the grandchild sleeps.
		e := b.exec(wire.ExecRequest{Process: process("spawn", "spawn", "print", "child", "sleep", "for-ever")})
		until(t, e.files["stdout"], "child")
		eventually(t, func() bool { return !alive(e.Pid) && len(b.members()) == ours+1 }, "%s: the first processes of the exec live", name)
		n.call(wire.MethodExecKill, wire.ExecRef{ExecID: e.ExecID}, nil)
		if rest, err := io.ReadAll(e.files["stdout"]); err != nil || strings.Contains(string(rest), "child") {
			t.Errorf("%s: after the kill: %q, %v", name, rest, err)
		}
		if code := e.wait(); code != 0 {
			t.Errorf("%s: exit code %d", name, code)
		}
		// The first process lives; the second is killed, and the third loses its parent.
		e = b.exec(wire.ExecRequest{Process: process("fork", "fork", "print", "child", "sleep", "for-ever")})
		until(t, e.files["stdout"], "child")
		second := descendants(strconv.Itoa(e.Pid))[0]
		pid, _ := strconv.Atoi(second)
		must(unix.Kill(e.Pid, unix.SIGSTOP))
		must(unix.Kill(pid, unix.SIGKILL))
		eventually(t, func() bool { return !alive(pid) }, "it does not end")
		n.call(wire.MethodExecKill, wire.ExecRef{ExecID: e.ExecID}, nil)
		if code := e.wait(); code != 137 {
			t.Errorf("%s: exit code %d", name, code)
		}
		if _, err := io.ReadAll(e.files["stdout"]); err != nil {
			t.Error(err)
		}
		eventually(t, func() bool { return len(b.members()) == ours }, "%s: left is %v", name, b.members())
	}
}

// What an exec of an executor that died has started is ended by the next executor, and nothing else
// of the container.
func TestExecOfADeadExecutor(t *testing.T) {
	n := start(t)
	all := n.kinds("fork", "print", "up", "sleep", "for-ever")
	ours := make(map[string]int)
	for name, b := range all {
		b.says("up")
		ours[name] = len(b.members())
		e := b.exec(wire.ExecRequest{Process: process("fork", "fork", "print", "child", "sleep", "for-ever")})
		until(t, e.files["stdout"], "child")
	}
	n.crash(func() {})
	for name, b := range all {
		b.adopt()
		eventually(t, func() bool { return len(b.members()) == ours[name] && len(b.execGroups()) == 0 }, "%s: left is %v", name, b.members())
		if !alive(b.reply.Pid) {
			t.Errorf("%s: the container died with its exec", name)
		}
	}
}
