package executor_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// withHook makes a hook run script before the container's program; it creates the file
// started first.
func withHook(started, script string) option {
	return func(_ *wire.RunRequest, s *specs.Spec) {
		s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{
			Path: "/bin/sh", Args: []string{"sh", "-c", "echo > " + started + "; " + script}, Env: []string{"PATH=" + os.Getenv("PATH")},
		}}}
	}
}

// begin sends the request to run b. The channel gets the result.
func (n *node) begin(ctx context.Context, b *box) <-chan error {
	result := make(chan error, 1)
	go func() {
		_, err := n.client.Call(ctx, wire.MethodRun, b.req, nil)
		result <- err
	}()
	return result
}

// A hook hangs, like one that queries a dead device, and has a child with its output open. The
// container can still be killed, by cancelling the start or by stopping it, and the executor can
// still be upgraded.
func TestStartThatHangs(t *testing.T) {
	n := start(t)
	ends := map[string]func(b *box, cancel context.CancelFunc){
		"given up": func(_ *box, cancel context.CancelFunc) { cancel() },
		"killed":   func(b *box, _ context.CancelFunc) { b.signal(unix.SIGKILL, true) },
	}
	for name, end := range ends {
		started := filepath.Join(n.dir, strings.ReplaceAll(name, " ", "-"))
		b := n.request([]string{"exit", "3"}, withHook(started, "sleep 3600 & wait; true"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		result := n.begin(ctx, b)
		eventually(t, func() bool { _, err := os.Stat(started); return err == nil }, "%s: the hook does not run", name)
		n.fails(fault.WrongState, wire.MethodDelete, wire.Ref{ID: b.id})
		n.fails(fault.WrongState, wire.MethodSignal, wire.SignalRequest{ID: b.id, Signal: int(unix.SIGTERM)})
		end(b, cancel)
		// It is no fault that a pod is deleted while it starts.
		if err := <-result; err == nil || errors.Is(err, fault.WrongState) != (name == "killed") {
			t.Errorf("%s: a start that was ended gives %v", name, err)
		}
		eventually(t, func() bool {
			_, err := n.client.Call(t.Context(), wire.MethodDelete, wire.Ref{ID: b.id}, nil)
			return err == nil
		}, "%s: it cannot be deleted", name)
		again := n.request([]string{"exit", "3"})
		again.req.ID, b.req = b.id, again.req
		n.call(wire.MethodRun, again.req, nil)
		if e := n.waitExit(b.id); e.Code != 3 {
			t.Errorf("%s: exit of the retry is %+v", name, e)
		}
	}
	eventually(t, func() bool { return !strings.Contains(commands(n.cmd.Process.Pid), "sleep 3600") }, "what the hook started lives")
	n.upgrade()
}

// A hook that forks while it is ended leaves nothing behind: a process that kept its output open
// would keep the start from ending.
func TestHookThatForksIsEnded(t *testing.T) {
	n := start(t)
	for try := range 10 {
		started := filepath.Join(n.dir, "started-"+strconv.Itoa(try))
		b := n.request([]string{"exit", "3"}, withHook(started, "while :; do sleep 3600 & done"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		result := n.begin(ctx, b)
		eventually(t, func() bool { return strings.Count(commands(n.cmd.Process.Pid), "sleep 3600") > try }, "the hook does not fork")
		cancel()
		if err := <-result; err == nil {
			t.Error("a start that was given up has succeeded")
		}
		eventually(t, func() bool { return !strings.Contains(commands(n.cmd.Process.Pid), "sleep 3600") }, "what the hook started lives")
	}
}

// A hanging start of a crispd that has died delays neither the next crispd nor an upgrade
// of the executor.
func TestStartLeftBehindHangs(t *testing.T) {
	n := start(t)
	busy := n.run([]string{"count", "-1", "1ms"})
	started := filepath.Join(n.dir, "started")
	b := n.request([]string{"exit", "3"}, withHook(started, "sleep 3600"))
	dead, err := wire.Dial(t.Context(), n.socket())
	if err != nil {
		t.Fatal(err)
	}
	go dead.Call(t.Context(), wire.MethodRun, b.req, nil)
	eventually(t, func() bool { _, err := os.Stat(started); return err == nil }, "the hook does not run")
	dead.Close()
	var all []wire.Info
	if n.call(wire.MethodList, nil, &all); len(all) != 1 {
		t.Errorf("list is %+v", all)
	}
	before := busy.numbered()
	upgraded := make(chan struct{})
	go func() {
		defer close(upgraded)
		n.upgrade()
	}()
	eventually(t, func() bool { return busy.numbered() > before+200 }, "the log stands still")
	if !strings.Contains(commands(n.cmd.Process.Pid), "sleep 3600") {
		t.Error("the log stood still until the start was given up")
	}
	<-upgraded
	b.delete()
	again := n.run([]string{"exit", "3"})
	if e := again.wait(); e.Code != 3 {
		t.Errorf("exit of the next is %+v", e)
	}
}

// descendants returns the PIDs of all processes below pid.
func descendants(pid string) (all []string) {
	lists, _ := filepath.Glob("/proc/" + pid + "/task/*/children")
	for _, list := range lists {
		children, _ := os.ReadFile(list)
		for _, child := range strings.Fields(string(children)) {
			all = append(append(all, child), descendants(child)...)
		}
	}
	return all
}

// commands returns the command lines of a process's descendants.
func commands(pid int) string {
	var all strings.Builder
	for _, pid := range descendants(strconv.Itoa(pid)) {
		line, _ := os.ReadFile("/proc/" + pid + "/cmdline")
		all.WriteString(strings.ReplaceAll(string(line), "\x00", " ") + "\n")
	}
	return all.String()
}

// countBootstraps returns the number of libcontainer's bootstrap processes, and how many of them are
// stopped.
func (n *node) countBootstraps() (all, stopped int) {
	for _, pid := range descendants(strconv.Itoa(n.cmd.Process.Pid)) {
		if !isBootstrapProcess(pid) {
			continue
		}
		all++
		if isStopped(pid) {
			stopped++
		}
	}
	return all, stopped
}

func isBootstrapProcess(pid string) bool {
	line, _ := os.ReadFile("/proc/" + pid + "/cmdline")
	return strings.HasPrefix(string(line), "crisp-executor\x00init\x00")
}

func isStopped(pid string) bool {
	status, _ := os.ReadFile("/proc/" + pid + "/status")
	return strings.Contains(string(status), "State:\tT")
}

// threads returns the number of threads of a process.
func threads(pid int) int {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return len(tasks)
}

// A container that stops every process it sees also stops execs before they run their program. Such
// an exec ends when its client cancels it or disconnects or, if it was stopped so late that it
// counts as started, kills it.
func TestExecWhereEverythingIsStopped(t *testing.T) {
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"})
	bad := b.exec(wire.ExecRequest{Process: process("print", "up", "stop-others")})
	line(t, bad.files["stdout"])
	for try, stopped := 0, 0; stopped < 10; try++ {
		if try == 1000 {
			t.Fatalf("of %d execs, %d were stopped while they were being started", try, stopped)
		}
		goes := try%2 == 1
		if n.execStopped(b, goes) {
			stopped++
		}
		eventually(t, func() bool { left, _ := n.countBootstraps(); return left == 0 }, "an exec is left (try %d, its client goes: %v)", try, goes)
	}
	eventually(t, func() bool { return len(b.members()) == 2 }, "execs are left that had started")
	n.call(wire.MethodExecKill, wire.ExecRef{ExecID: bad.ExecID}, nil)
	bad.wait()
	if code := b.exec(wire.ExecRequest{Process: process("exit", "4")}).wait(); code != 4 {
		t.Errorf("an exec after that ended with %d", code)
	}
	n.upgrade()
}

// execStopped begins an exec and, once it is stopped, cancels it or closes its client. It reports
// whether that came before the answer; an exec that has started is ended likewise.
func (n *node) execStopped(b *box, goes bool) bool {
	n.t.Helper()
	client, err := wire.Dial(n.t.Context(), n.socket())
	if err != nil {
		n.t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(n.t.Context())
	defer cancel()
	var reply wire.ExecReply
	over := make(chan error, 1)
	go func() {
		files, err := client.Call(ctx, wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process("sleep", "for-ever")}, &reply)
		for _, f := range files {
			f.Close()
		}
		over <- err
	}()
	eventually(n.t, func() bool { _, stopped := n.countBootstraps(); return stopped > 0 || len(over) > 0 }, "an exec neither starts nor is it stopped")
	if goes {
		client.Close()
	} else {
		cancel()
	}
	err = <-over
	if errors.Is(err, context.Canceled) || goes && errors.Is(err, fault.Unavailable) {
		return true
	}
	if err != nil {
		n.t.Fatal(err)
	}
	if !goes {
		if _, err := client.Call(n.t.Context(), wire.MethodExecKill, wire.ExecRef{ExecID: reply.ExecID}, nil); err != nil {
			n.t.Fatal(err)
		}
		if _, err := client.Call(n.t.Context(), wire.MethodExecWait, wire.ExecRef{ExecID: reply.ExecID}, nil); err != nil {
			n.t.Fatal(err)
		}
	}
	return false
}

// A container that stops every process it sees also stops other containers of its pod that
// share its PID namespace, before they run their program. Such a start can be given up and
// repeated.
func TestStartWhereEverythingIsStopped(t *testing.T) {
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"})
	bad := b.exec(wire.ExecRequest{Process: process("print", "up", "stop-others")})
	line(t, bad.files["stdout"])
	beside := func(_ *wire.RunRequest, s *specs.Spec) {
		s.Linux.Namespaces[0].Path = fmt.Sprintf("/proc/%d/ns/pid", b.reply.Pid)
	}
	for try, stopped := 0, 0; stopped < 5; try++ {
		if try == 1000 {
			t.Fatalf("of %d containers, %d were stopped while they were being started", try, stopped)
		}
		c := n.request([]string{"sleep", "for-ever"}, beside)
		ctx, cancel := context.WithCancel(t.Context())
		result := n.begin(ctx, c)
		eventually(t, func() bool { _, stopped := n.countBootstraps(); return stopped > 0 || len(result) > 0 }, "a container neither starts nor is it stopped")
		cancel()
		switch err := <-result; {
		case err == nil:
			c.signal(unix.SIGKILL, true)
			c.wait()
		case errors.Is(err, context.Canceled):
			stopped++
		default:
			t.Fatal(err)
		}
		eventually(t, func() bool { left, _ := n.countBootstraps(); return left == 0 }, "a container is left (try %d)", try)
		eventually(t, func() bool {
			_, err := n.client.Call(t.Context(), wire.MethodDelete, wire.Ref{ID: c.id}, nil)
			return err == nil
		}, "try %d cannot be deleted", try)
	}
	n.call(wire.MethodExecKill, wire.ExecRef{ExecID: bad.ExecID}, nil)
	bad.wait()
	n.upgrade()
}

// A probe whose timeout passes before its command has started must not start it afterwards: nothing
// would wait for it or end it.
func TestExecGivenUpWhileItStarts(t *testing.T) {
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"})
	// Go keeps the threads of starts that once overlapped, as those below do on a busy machine.
	var overlapping sync.WaitGroup
	for range 20 {
		overlapping.Go(func() {
			files, err := n.client.Call(t.Context(), wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process("exit", "0")}, nil)
			if err != nil {
				t.Errorf("exec: %v", err)
			}
			for _, f := range files {
				f.Close()
			}
		})
	}
	overlapping.Wait()
	before := threads(n.cmd.Process.Pid)
	givenUp := 0
	for i := range 200 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*200*time.Microsecond)
		files, err := n.client.Call(ctx, wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process("sleep", "for-ever")}, nil)
		cancel()
		if err == nil {
			for _, f := range files {
				f.Close()
			}
			break // from here on execs start in time
		}
		givenUp++
	}
	eventually(t, func() bool { return strings.Count(commands(n.cmd.Process.Pid), "sleep for-ever") <= 2 }, "execs run on that were given up")
	eventually(t, func() bool { return len(b.members()) <= 2 }, "the container has %v", b.members())
	// As many may overlap as the machine is busy, but not most of them.
	if now := threads(n.cmd.Process.Pid); now > before+max(20, givenUp/2) {
		t.Errorf("the executor has %d threads, had %d before %d execs were given up", now, before, givenUp)
	}
}

// members returns the processes of the container's cgroup and of those below it.
func (b *box) members() (pids []string) {
	dir := b.reply.Cgroups["freezer"]
	if dir == "" {
		dir = b.reply.Cgroups[""]
	}
	filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err == nil && filepath.Base(path) == "cgroup.procs" {
			data, _ := os.ReadFile(path)
			pids = append(pids, strings.Fields(string(data))...)
		}
		return nil
	})
	return pids
}

// Nothing can be started in a frozen container, where it would be frozen half-started.
func TestExecInAFrozenContainer(t *testing.T) {
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"})
	file, on, off := filepath.Join(b.reply.Cgroups["freezer"], "freezer.state"), "FROZEN", "THAWED"
	if b.reply.Cgroups["freezer"] == "" {
		file, on, off = filepath.Join(b.reply.Cgroups[""], "cgroup.freeze"), "1", "0"
	}
	freeze := func(value string) {
		if err := os.WriteFile(file, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	freeze(on)
	defer freeze(off)
	n.fails(fault.WrongState, wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process("exit", "0")})
	freeze(off)
	if code := b.exec(wire.ExecRequest{Process: process("exit", "4")}).wait(); code != 4 {
		t.Errorf("an exec after the thaw ended with %d", code)
	}
}

// execGroups returns the cgroups of the container's execs.
func (b *box) execGroups() []string {
	dir := b.reply.Cgroups["freezer"]
	if dir == "" {
		dir = b.reply.Cgroups[""]
	}
	dirs, _ := filepath.Glob(filepath.Join(dir, "exec-*"))
	return dirs
}

// A probe that leaves a process behind each time must not accumulate cgroups.
func TestExecThatLeavesAProcess(t *testing.T) {
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"})
	for range 10 {
		b.exec(wire.ExecRequest{Process: process("spawn", "sleep", "300ms")}).wait()
	}
	b.exec(wire.ExecRequest{Process: process("spawn", "sleep", "1s")}).wait()
	n.upgrade() // the next executor takes all of them over
	eventually(t, func() bool { return len(b.execGroups()) == 0 }, "cgroups are left: %v", b.execGroups())
}

// An upgrade may come between the end of an exec and the answer to its client.
func TestUpgradeBeforeAnExecIsReported(t *testing.T) {
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"})
	e := b.exec(wire.ExecRequest{Process: process("spawn", "sleep", "300ms")})
	eventually(t, func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d", e.Pid))
		return errors.Is(err, fs.ErrNotExist)
	}, "the exec runs on")
	n.upgrade()
	if code := e.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	eventually(t, func() bool { return len(b.execGroups()) == 0 }, "its cgroup is left")
}
