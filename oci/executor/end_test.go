package executor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

func withHostPID(_ *wire.RunRequest, s *specs.Spec) {
	s.Linux.Namespaces = s.Linux.Namespaces[1:]
	s.Mounts[0] = specs.Mount{Destination: "/proc", Type: "bind", Source: "/proc", Options: []string{"rbind", "ro"}}
}

func withMemory(bytes int64) option {
	return func(_ *wire.RunRequest, s *specs.Spec) {
		s.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &bytes}}
	}
}

func TestOOM(t *testing.T) {
	n := start(t)
	b := n.run([]string{"eat", "200"}, withMemory(32<<20))
	if e := b.wait(); e.Code != 137 || !e.OOMKilled || e.Reason != wire.ReasonOOMKilled {
		t.Errorf("exit is %+v", e)
	}
	b.reportsOOM()
	// An OOM kill of a child is reported while the container keeps running, but does not explain
	// that a client ends it.
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		c := n.run([]string{"sleep", "for-ever"}, withMemory(32<<20), withHostPID)
		if code := c.exec(wire.ExecRequest{Process: process("eat", "200")}).wait(); code != 137 {
			t.Errorf("exec ended with %d", code)
		}
		c.reportsOOM()
		if !alive(c.reply.Pid) {
			t.Fatal("the container has ended")
		}
		c.signal(sig, false)
		if e := c.wait(); e.Code != 128+int32(sig) || e.OOMKilled || e.Reason != wire.ReasonError {
			t.Errorf("after a kill of a child and %s the exit is %+v", sig, e)
		}
	}
	d := n.run([]string{"exit", "0"}, withMemory(32<<20))
	if e := d.wait(); e.OOMKilled || e.Reason != wire.ReasonCompleted {
		t.Errorf("exit without OOM is %+v", e)
	}
}

// reportsOOM waits for the event of an OOM kill.
func (b *box) reportsOOM() {
	b.t.Helper()
	for {
		select {
		case e := <-b.ooms:
			if e.ID == b.id {
				b.kills = e.Kills
				return
			}
		case <-time.After(2 * time.Minute):
			b.t.Fatalf("no event reports an OOM kill in container %s", b.id)
		}
	}
}

// Without a PID namespace of its own, the end of a container's init kills nothing else: the
// executor must find the rest and kill it.
func TestEndTakesEverything(t *testing.T) {
	n := start(t)
	b := n.run([]string{"spawn", "print", "child", "sleep", "for-ever"}, withHostPID)
	if len(b.reply.Cgroups) == 0 {
		t.Fatal("the container has no cgroups")
	}
	b.wait() // the init ends at once
	b.empties()
}

// processes returns the PIDs in the container's cgroups, once per hierarchy.
func (b *box) processes() []string {
	var all []string
	for _, dir := range b.reply.Cgroups {
		data, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		all = append(all, strings.Fields(string(data))...)
	}
	return all
}

// empties waits until nothing is in the container's cgroup: a process that was
// killed takes a moment to leave it.
func (b *box) empties() {
	b.t.Helper()
	eventually(b.t, func() bool { return len(b.processes()) == 0 }, "processes are left in %v", b.reply.Cgroups)
}

func TestSignalAll(t *testing.T) {
	n := start(t)
	b := n.run([]string{"ignore-term", "fork", "ignore-term", "print", "up", "sleep", "for-ever"}, withHostPID)
	b.says("up")
	b.signal(unix.SIGTERM, true)
	time.Sleep(50 * time.Millisecond)
	if !alive(b.reply.Pid) {
		t.Fatal("it does not ignore SIGTERM")
	}
	b.signal(unix.SIGKILL, true)
	if e := b.wait(); e.Code != 137 {
		t.Errorf("exit is %+v", e)
	}
	b.empties()
}

// A container whose init was moved out of its cgroup, by an agent of the host or by itself,
// can be stopped.
func TestKillMovedAway(t *testing.T) {
	n := start(t)
	b := n.run([]string{"ignore-term", "print", "up", "sleep", "for-ever"})
	b.says("up")
	b.moveAway()
	b.signal(unix.SIGKILL, true)
	if e := b.wait(); e.Code != 137 {
		t.Errorf("exit is %+v", e)
	}
}

// moveAway moves the init out of the container's cgroups.
func (b *box) moveAway() {
	b.t.Helper()
	for _, dir := range b.reply.Cgroups {
		root := strings.TrimSuffix(dir, b.node.cgroup+"/"+b.id)
		if err := os.WriteFile(filepath.Join(root, "cgroup.procs"), []byte(fmt.Sprint(b.reply.Pid)), 0); err != nil {
			b.t.Fatal(err)
		}
	}
}

// A container's init is not reaped until its exit is on disk: if the executor dies in
// between, its successor still gets the exit code from the kernel.
func TestExitIsKeptUntilItIsRecorded(t *testing.T) {
	n := start(t)
	exits := filepath.Join(n.dir, "exits")
	if err := os.Mkdir(exits, 0o700); err != nil {
		t.Fatal(err)
	}
	opens := blockOpens(t, exits)
	b := n.run([]string{"sleep", "for-ever"}, func(r *wire.RunRequest, _ *specs.Spec) { r.ExitPath = filepath.Join(exits, "exit.json") })
	b.exit = b.req.ExitPath
	b.signal(unix.SIGKILL, false)
	eventually(t, func() bool {
		waits, err := unix.Poll([]unix.PollFd{{Fd: int32(opens.Fd()), Events: unix.POLLIN}}, 0)
		return err == nil && waits == 1
	}, "the exit is not recorded")
	time.Sleep(300 * time.Millisecond) // in which a wrong executor would reap it
	if _, err := os.Stat(b.exit); err == nil {
		t.Fatal("the exit is recorded, though nothing can be opened there")
	}
	if alive(b.reply.Pid) {
		t.Error("the init is still alive")
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", b.reply.Pid)); err != nil {
		t.Error("the init was reaped before its exit was recorded")
	}
	opens.Close()
	if e := b.wait(); e.Code != 137 {
		t.Errorf("exit is %+v", e)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", b.reply.Pid)); err == nil {
		t.Error("the init is not reaped")
	}
}

// blockOpens makes every open of a file in dir wait, as on a disk that does not answer,
// until the file that it returns is closed (fanotify(7), FAN_OPEN_PERM).
func blockOpens(t *testing.T, dir string) *os.File {
	t.Helper()
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC, unix.O_RDONLY)
	if err == nil {
		err = unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM|unix.FAN_EVENT_ON_CHILD, unix.AT_FDCWD, dir)
	}
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
		t.Skipf("the kernel has no CONFIG_FANOTIFY_ACCESS_PERMISSIONS: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "fanotify")
	t.Cleanup(func() { f.Close() })
	return f
}

// A frozen container can be killed.
func TestKillFrozen(t *testing.T) {
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"})
	path, value := filepath.Join(b.reply.Cgroups["freezer"], "freezer.state"), "FROZEN"
	if b.reply.Cgroups["freezer"] == "" {
		path, value = filepath.Join(b.reply.Cgroups[""], "cgroup.freeze"), "1"
	}
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
	b.signal(unix.SIGKILL, false)
	if e := b.wait(); e.Code != 137 {
		t.Errorf("exit is %+v", e)
	}
}

// A container can be killed that has frozen a cgroup inside its own, as "docker pause" in it does.
func TestKillFrozenInside(t *testing.T) {
	n := start(t)
	for _, c := range []struct {
		name    string
		all     bool
		options []option
	}{
		{"init", false, nil}, {"all", true, nil}, {"host PIDs", true, []option{withHostPID}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := n.run([]string{"fork", "print", "up", "sleep", "for-ever"}, c.options...)
			b.says("up")
			dir, file, value := b.reply.Cgroups["freezer"], "freezer.state", "FROZEN"
			if dir == "" {
				dir, file, value = b.reply.Cgroups[""], "cgroup.freeze", "1"
			}
			inner := filepath.Join(dir, "docker", "paused")
			if err := os.MkdirAll(inner, 0o755); err != nil {
				t.Fatal(err)
			}
			for _, pid := range b.processes() {
				if pid == strconv.Itoa(b.reply.Pid) {
					continue
				}
				if err := os.WriteFile(filepath.Join(inner, "cgroup.procs"), []byte(pid), 0); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(inner, file), []byte(value), 0); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.WriteFile(filepath.Join(inner, file), []byte("THAWED"), 0) }) // if the test fails
			b.signal(unix.SIGKILL, c.all)
			if e := b.wait(); e.Code != 137 {
				t.Errorf("exit is %+v", e)
			}
			eventually(t, func() bool {
				procs, _ := os.ReadFile(filepath.Join(inner, "cgroup.procs"))
				return len(procs) == 0
			}, "a process is left in %s", inner)
		})
	}
}

// Orphans of containers without a PID namespace become the executor's children: it must reap them,
// and no others.
func TestOrphansAreReaped(t *testing.T) {
	n := start(t)
	b := n.run([]string{"fork", "spawn", "sleep", "100ms", "exit", "3"}, withHostPID)
	b.wait()
	eventually(t, func() bool {
		return !strings.Contains(children(t, n.cmd.Process.Pid, "stat="), "Z")
	}, "zombies are left")
}

// children returns a line of columns for each child of a process, as ps(1) has them.
func children(t *testing.T, pid int, columns ...string) string {
	t.Helper()
	args := []string{"--ppid", fmt.Sprint(pid)}
	for _, column := range columns {
		args = append(args, "-o", column)
	}
	out, err := exec.Command("ps", args...).Output()
	// It exits with 1 also without any.
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || len(exit.Stderr) > 0) {
		t.Fatalf("ps: %v", err)
	}
	return string(out)
}

// A container in the host's PID namespace leaves hundreds of orphans while the start of
// another container hangs. Unreaped, they would count against its limit of processes.
func TestManyOrphansAreReaped(t *testing.T) {
	n := start(t)
	started := filepath.Join(n.dir, "started")
	hangs := n.request([]string{"exit", "0"}, withHook(started, "sleep 3600"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := n.begin(ctx, hangs)
	eventually(t, func() bool { _, err := os.Stat(started); return err == nil }, "the hook does not run")
	b := n.run([]string{"orphans", "300", "print", "left", "sleep", "for-ever"}, withHostPID)
	b.says("left")
	orphans := func() (count int) {
		out := children(t, n.cmd.Process.Pid, "stat=", "args=")
		if out == "" {
			t.Fatal("ps shows no children of the executor, not even the container")
		}
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "Z") || strings.Contains(line, "echo-stdin") { // a zombie, or about to end
				count++
			}
		}
		return count
	}
	eventually(t, func() bool { return orphans() == 0 }, "orphans are left")
	cancel()
	<-result
	b.signal(unix.SIGKILL, true)
	b.wait()
}

func TestUpdate(t *testing.T) {
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"}, withMemory(64<<20))
	limit := func() string {
		data, err := os.ReadFile(filepath.Join(b.reply.Cgroups["memory"], "memory.limit_in_bytes"))
		if err != nil {
			data, err = os.ReadFile(filepath.Join(b.reply.Cgroups[""], "memory.max"))
		}
		if err != nil {
			t.Fatalf("in %v: %v", b.reply.Cgroups, err)
		}
		return strings.TrimSpace(string(data))
	}
	if got := limit(); got != fmt.Sprint(64<<20) {
		t.Fatalf("limit is %s", got)
	}
	n.call(wire.MethodUpdate, wire.UpdateRequest{ID: b.id, Resources: []byte(`{"memory":{"limit":100663296}}`)}, nil)
	if got := limit(); got != fmt.Sprint(96<<20) {
		t.Errorf("limit is %s", got)
	}
	// What an update does not set stays, and a refused update changes nothing.
	n.call(wire.MethodUpdate, wire.UpdateRequest{ID: b.id, Resources: []byte(`{"cpu":{"shares":512}}`)}, nil)
	n.fails(fault.Invalid, wire.MethodUpdate, wire.UpdateRequest{ID: b.id, Resources: []byte(`{"cpu":{"cpus":"4711"},"memory":{"limit":50331648}}`)})
	if got := limit(); got != fmt.Sprint(96<<20) {
		t.Errorf("limit is %s", got)
	}
	// The executor's view of a container can still start processes after an update.
	if code := b.exec(wire.ExecRequest{Process: process("exit", "2")}).wait(); code != 2 {
		t.Errorf("exit code %d", code)
	}
}

// needsStatic skips a test in which the executor runs its own program in a container.
func needsStatic(t *testing.T) {
	t.Helper()
	if os.Getenv("CRISP_BIN") == "" {
		t.Skip("needs CRISP_BIN, as make test sets it: the test binary is not linked statically")
	}
}

// An environment is bytes, and CRI passes it as bytes since 1.34.
func TestEnvironmentOfBytes(t *testing.T) {
	n := start(t)
	needsStatic(t)
	env := [][]byte{[]byte("PATH=/"), []byte("A=old"), []byte("A=\xff\xfe"), []byte("B=plain")}
	b := n.run([]string{"env", "A", "env", "B", "sleep", "for-ever"},
		func(r *wire.RunRequest, _ *specs.Spec) { r.Env = env })
	b.says("plain\n")
	if got := b.output(crilog.Stdout); got != "\xff\xfe\nplain\n" {
		t.Errorf("environment is %q", got)
	}
	e := b.exec(wire.ExecRequest{Process: process("env", "A", "ls", "/proc/self/fd"), Env: env})
	if got := line(t, e.files["stdout"]); got != "\xff\xfe\n" {
		t.Errorf("environment of exec is %q", got)
	}
	e.wait()
}

// Bytes in PATH and HOME count as others do, and so do those beyond a mebibyte.
func TestPathAndHomeOfBytes(t *testing.T) {
	n := start(t)
	needsStatic(t)
	env := [][]byte{[]byte("PATH=/\xff:/"), []byte("HOME=/\xfe")}
	for i := range 12 {
		env = append(env, append(fmt.Appendf(nil, "BIG%d=\xff", i), bytes.Repeat([]byte("x"), 100<<10)...))
	}
	env = append(env, []byte("LAST=\xfd"))
	b := n.run([]string{"env", "HOME", "env", "LAST", "sleep", "for-ever"},
		func(r *wire.RunRequest, s *specs.Spec) { r.Env, s.Process.Args[0] = env, "testbin" })
	eventually(t, func() bool { return strings.Count(b.output(crilog.Stdout)+b.output(crilog.Stderr), "\n") >= 2 }, "it says nothing")
	if got := b.output(crilog.Stdout); got != "/\xfe\n\xfd\n" {
		t.Errorf("HOME and LAST are %q: %s", got, b.output(crilog.Stderr))
	}
}

func TestPodInit(t *testing.T) {
	n := start(t)
	req := wire.PodInitRequest{ID: "pod", Path: programs.podinit, Cgroup: n.cgroup + "/pod", Fast: fastInit}
	var reply wire.RunReply
	files := n.call(wire.MethodPodInit, req, &reply)
	if len(files) != 1 || files[0].Name() != wire.FDPid {
		t.Fatalf("got %v", files)
	}
	defer files[0].Close()
	var rss, procs int
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", reply.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		fmt.Sscanf(line, "VmRSS: %d kB", &rss)
		fmt.Sscanf(line, "Threads: %d", &procs)
	}
	state, err := os.ReadFile(filepath.Join(n.dir, "executor", "pod", "state.json"))
	if err != nil || bytes.Contains(state, []byte("crisp.init=fast")) != fastInit {
		t.Errorf("fast init %v: state is %s, %v", fastInit, state, err)
	}
	if rss > 100 || procs != 1 {
		t.Errorf("%d KiB resident, %d threads: %s", rss, procs, data)
	}
	shared := func(_ *wire.RunRequest, s *specs.Spec) {
		s.Linux.Namespaces[0].Path = fmt.Sprintf("/proc/%d/ns/pid", reply.Pid)
	}
	// A container of the pod leaves an orphan, which the pod's init reaps.
	b := n.run([]string{"print", "up", "fork", "spawn", "sleep", "50ms"}, shared)
	b.wait()
	c := n.run([]string{"print", "up", "sleep", "for-ever"}, shared)
	c.says("up")
	eventually(t, func() bool {
		return children(t, reply.Pid, "pid=") == ""
	}, "orphans are left")
	if !alive(c.reply.Pid) {
		t.Fatal("the end of one container ended another")
	}
	// With the pod's init ends its PID namespace.
	n.call(wire.MethodSignal, wire.SignalRequest{ID: "pod", Signal: int(unix.SIGTERM)}, nil)
	if e := n.waitExit("pod"); e.Code != 0 {
		t.Errorf("exit is %+v", e)
	}
	if e := c.wait(); e.Code != 137 {
		t.Errorf("exit of the container is %+v", e)
	}
}
