package executor_test

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// withEngine makes Debian's runc run the container.
func withEngine(req *wire.RunRequest, _ *specs.Spec) { req.Engine = "/usr/sbin/runc" }

// A container of an OCI runtime behaves like one of libcontainer in every call, across an
// upgrade of the executor and at its end.
func TestEngine(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/runc"); err != nil {
		t.Skip("needs /usr/sbin/runc: apt-get install runc")
	}
	n := start(t)
	busy := n.run([]string{"count", "-1", "1ms"}, withEngine)
	tty := n.run([]string{"print", "up", "echo-stdin"}, withEngine, withTTY)
	tty.says("up")
	attached := tty.attach(true)
	attached["stdin"].WriteString("typed\n")
	tty.says("typed\ntyped\n")

	before := busy.limits()
	refused := []byte(`{"pids":{"limit":77},"cpu":{"shares":99,"quota":1,"period":100000}}`)
	n.fails(fault.Invalid, wire.MethodUpdate, wire.UpdateRequest{ID: busy.id, Resources: refused})
	if after := busy.limits(); after["pids.max"] != before["pids.max"] {
		t.Errorf("limits were %v, and after an update that was refused %v", before, after)
	}
	n.call(wire.MethodUpdate, wire.UpdateRequest{ID: busy.id, Resources: []byte(`{"pids":{"limit":55}}`)}, nil)
	n.call(wire.MethodUpdate, wire.UpdateRequest{ID: busy.id, Resources: []byte(`{"memory":{"limit":67108864}}`)}, nil)
	if after := busy.limits(); after["pids.max"] != "55" || !strings.Contains(after["memory.limit_in_bytes"]+after["memory.max"], "67108864") {
		t.Errorf("limits are %v after two updates", after)
	}

	// The kill of an exec takes its children along, if the runtime can do that.
	killed := busy.exec(wire.ExecRequest{Process: process("fork", "print", "spawned", "sleep", "for-ever")})
	line(t, killed.files["stdout"])
	n.call(wire.MethodExecKill, wire.ExecRef{ExecID: killed.ExecID}, nil)
	if code := killed.wait(); code != 137 {
		t.Errorf("killed exec ended with %d", code)
	}
	dir := busy.reply.Cgroups["pids"]
	if dir == "" {
		dir = busy.reply.Cgroups[""]
	}
	procs := filepath.Join(dir, "cgroup.procs")
	eventually(t, func() bool {
		data, err := os.ReadFile(procs)
		return err == nil && len(strings.Fields(string(data))) == 1
	}, "what the killed exec started lives")
	typed := busy.exec(wire.ExecRequest{Process: process("print", "hello", "exit", "3"), TTY: true, Width: 99, Height: 33})
	if got := line(t, typed.files["pty"]); got != "hello\r\n" {
		t.Errorf("exec with a terminal wrote %q", got)
	}
	if code := typed.wait(); code != 3 {
		t.Errorf("exec with a terminal ended with %d", code)
	}

	bad := n.request([]string{"exit"}, withEngine, func(_ *wire.RunRequest, spec *specs.Spec) { spec.Process.Args = []string{"/nosuch"} })
	if err := n.fails(nil, wire.MethodRun, bad.req); err != nil && err.Error() != `exec: "/nosuch": stat /nosuch: no such file or directory` {
		t.Errorf("start of a missing program: %v", err)
	}
	wrong := n.request([]string{"exit"}, func(req *wire.RunRequest, _ *specs.Spec) { req.Engine = "/bin/false" })
	n.fails(nil, wire.MethodRun, wrong.req)

	n.upgrade()
	if code := busy.exec(wire.ExecRequest{Process: process("exit", "4")}).wait(); code != 4 {
		t.Errorf("exec after an upgrade: %d", code)
	}
	busy.signal(unix.SIGKILL, false)
	if e := busy.wait(); e.Code != 137 {
		t.Errorf("exit is %+v", e)
	}
	busy.numbered()

	// A crash: the next executor finds the engine in the bundle.
	n.crash(func() {})
	tty.adopt()
	if code := tty.exec(wire.ExecRequest{Process: process("exit", "6")}).wait(); code != 6 {
		t.Errorf("exec after a crash: %d", code)
	}
	busy.delete()
}

// An engine that fails after it has started the process of an exec, for example because it
// cannot write its PID file, leaves a process that nothing else would end.
func TestExecByAnEngineThatFailsLate(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/runc"); err != nil {
		t.Skip("needs /usr/sbin/runc: apt-get install runc")
	}
	n := start(t)
	path := filepath.Join(n.dir, "engine")
	script := "#!/bin/sh\n/usr/sbin/runc \"$@\" || exit\ncase \" $* \" in *' exec --detach '*) exit 1; esac\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	b := n.run([]string{"sleep", "for-ever"}, func(req *wire.RunRequest, _ *specs.Spec) { req.Engine = path })
	n.fails(fault.Internal, wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process("sleep", "for-ever")})
	eventually(t, func() bool { return len(b.members()) == 1 && len(b.execGroups()) == 0 }, "the process of the exec is left, or its cgroup")
	n.upgrade()
}

// An engine gets the environment as bytes, too.
func TestEngineEnvironmentOfBytes(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/runc"); err != nil {
		t.Skip("needs /usr/sbin/runc: apt-get install runc")
	}
	n := start(t)
	needsStatic(t)
	b := n.run([]string{"env", "RAW", "env", "A"}, withEngine, func(req *wire.RunRequest, _ *specs.Spec) { req.Env = [][]byte{[]byte("RAW=\xff\xfe"), []byte("A=b")} })
	b.wait()
	if got := b.output("stdout"); !strings.Contains(got, "\xff\xfe\nb\n") {
		t.Errorf("environment is %q", got)
	}
}

// The console sockets left by a killed executor do not stand in the way of its successor,
// which counts their names from one again.
func TestEngineTerminalAfterACrash(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/runc"); err != nil {
		t.Skip("needs /usr/sbin/runc: apt-get install runc")
	}
	n := start(t)
	left := make(map[string]bool)
	for i := range 50 {
		path := filepath.Join(n.dir, "tty."+strconv.FormatInt(int64(i), 36))
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
		left[path] = true
	}
	b := n.run([]string{"print", "up", "echo-stdin"}, withEngine, withTTY)
	b.says("up")
	e := b.exec(wire.ExecRequest{Process: process("print", "in", "exit", "4"), TTY: true})
	until(t, e.files["pty"], "in")
	if code := e.wait(); code != 4 {
		t.Errorf("exec with a terminal ended with %d", code)
	}
	used := 0
	for path := range left {
		if _, err := os.Stat(path); err != nil {
			used++
		}
	}
	if used == 0 {
		t.Error("none of the sockets was replaced: the executor uses other names")
	}
}
