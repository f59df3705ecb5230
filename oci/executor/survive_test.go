package executor_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

// crash kills the executor and starts another.
func (n *node) crash(meanwhile func()) {
	n.t.Helper()
	if err := n.cmd.Process.Kill(); err != nil {
		n.t.Fatal(err)
	}
	n.cmd.Wait()
	n.client.Close()
	meanwhile()
	n.launch()
}

func (b *box) adopt() {
	b.t.Helper()
	b.call(wire.MethodAdopt, wire.AdoptRequest{
		Settings: b.req.Settings, RunReply: b.reply, OOMKills: b.kills,
	}, nil, b.fds...)
}

// numbered checks that the log has the lines 0, 1, 2 … without a gap, and returns their
// number.
func (b *box) numbered() int { b.t.Helper(); return numbered(b.t, b.output(crilog.Stdout)) }

func numbered(t testing.TB, text string) int {
	t.Helper()
	lines := strings.Fields(text[:strings.LastIndexByte(text, '\n')+1]) // the last line may be incomplete
	for i, s := range lines {
		if s != fmt.Sprint(i) {
			t.Fatalf("line %d is %q", i, s)
		}
	}
	return len(lines)
}

// The executor is killed: containers keep running, and keep their output in their pipes. The next
// executor gets that and their exit codes, and every call works.
func TestAdopt(t *testing.T) {
	n := start(t)
	busy := n.run([]string{"count", "-1", "1ms"}, withStdin)
	quits := n.run([]string{"sleep", "400ms", "exit", "9"})
	tty := n.run([]string{"print", "up", "echo-stdin"}, withTTY)
	gone := n.run([]string{"sleep", "for-ever"})
	tty.says("up")
	busy.says("3\n")
	left := busy.exec(wire.ExecRequest{Process: process("sleep", "for-ever")})
	n.crash(func() {
		unix.Kill(gone.reply.Pid, unix.SIGKILL)
		eventually(t, func() bool { return !alive(gone.reply.Pid) }, "the container lives on after SIGKILL")
	})
	before := busy.numbered()
	for _, b := range []*box{busy, quits, tty, gone} {
		b.adopt()
	}
	// The exec of the dead executor is ended: nothing would wait for it or end it at its
	// timeout.
	eventually(t, func() bool { return !alive(left.Pid) && len(busy.execGroups()) == 0 }, "an exec of the executor that died is left")
	n.fails(fault.Exists, wire.MethodAdopt, wire.AdoptRequest{Settings: wire.Settings{ID: busy.id}, RunReply: busy.reply})
	eventually(t, func() bool { return busy.numbered() > before+20 }, "the log does not go on")
	for b, want := range map[*box]int32{quits: 9, gone: 137} {
		e := b.wait()
		if e.Code == 255 && e.Reason == wire.ReasonUnknown && e.Message != "" {
			t.Logf("container %s: %s", b.id, e.Message) // the kernel is older than 6.15
		} else if e.Code != want || e.Message != "" {
			t.Errorf("exit of an adopted container is %+v, want code %d", e, want)
		}
		if data, err := os.ReadFile(b.exit); err != nil || !strings.Contains(string(data), fmt.Sprint(e.Code)) {
			t.Errorf("record is %s, %v", data, err)
		}
		b.drop()
	}
	if code := busy.exec(wire.ExecRequest{Process: process("exit", "4")}).wait(); code != 4 {
		t.Errorf("exec in an adopted container: %d", code)
	}
	a := tty.attach(true)
	a["stdin"].WriteString("typed\n")
	tty.says("typed\ntyped\n")
	busy.signal(unix.SIGKILL, false)
	if e := busy.wait(); e.Code != 137 && e.Reason != wire.ReasonUnknown {
		t.Errorf("exit is %+v", e)
	}
	busy.delete()
	if _, err := os.Stat(filepath.Join(n.dir, "executor", busy.id)); err == nil {
		t.Error("state is left")
	}
}

// Output that the executor has read but not yet logged when it is killed is not lost.
func TestAdoptLosesNothing(t *testing.T) {
	n := start(t)
	var all []*box
	for i := range 5 {
		with := func(*wire.RunRequest, *specs.Spec) {}
		if i == 4 {
			with = withTTY
		}
		all = append(all, n.run([]string{"count", "-1", "200us"}, with))
	}
	for range 20 {
		for _, b := range all {
			before, _ := os.Stat(b.log)
			eventually(t, func() bool { now, err := os.Stat(b.log); return err == nil && now.Size() > before.Size() }, "the log stands still")
		}
		n.crash(func() {})
		for _, b := range all {
			b.adopt()
		}
	}
	for _, b := range all {
		b.numbered()
	}
}

// crispd was killed too, and its descriptors are closed: the process is found by PID and
// start time.
func TestAdoptWithoutDescriptors(t *testing.T) {
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"})
	lost := n.run([]string{"sleep", "for-ever"})
	n.crash(func() {
		b.drop()
		lost.drop()
	})
	b.adopt()
	lost.reply.StartTime++ // as if the PID had been reused
	lost.adopt()
	if e := lost.wait(); e.Code != 255 || e.Reason != wire.ReasonUnknown || e.Message == "" {
		t.Errorf("exit is %+v", e)
	}
	b.signal(unix.SIGKILL, false)
	if e := b.wait(); e.Code != 137 && e.Reason != wire.ReasonUnknown {
		t.Errorf("exit is %+v", e)
	}
}

// A container that was not adopted can still be removed, and its ID reused.
func TestDeleteAfterCrash(t *testing.T) {
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"})
	n.crash(func() {})
	b.delete()
	if alive(b.reply.Pid) {
		t.Error("the container lives on after its removal")
	}
	again := n.run([]string{"sleep", "for-ever"})
	b.drop()
	n.crash(func() {})
	again.fds = n.call(wire.MethodRun, again.req, &again.reply) // replaces the leftovers
	if e := again.exec(wire.ExecRequest{Process: process("exit", "0")}).wait(); e != 0 {
		t.Errorf("exit code %d", e)
	}
}

// An init that is in no cgroup of its container, because it was moved or is about to end,
// is ended before another takes its place.
func TestRunAgainAfterCrash(t *testing.T) {
	n := start(t)
	b := n.run([]string{"ignore-term", "print", "up", "sleep", "for-ever"})
	b.says("up")
	b.moveAway()
	old := b.reply.Pid
	b.drop()
	n.crash(func() {})
	b.fds = n.call(wire.MethodRun, b.req, &b.reply)
	if alive(old) {
		t.Error("the first init lives on")
	}
}

// A second executor with the same state directory must not take the socket from the first.
func TestOneExecutor(t *testing.T) {
	n := start(t)
	first := n.cmd
	n.cmd = nil
	defer func() { n.cmd = first }()
	second := &node{t: t, dir: n.dir}
	second.spawn()
	if err := second.cmd.Wait(); err == nil {
		t.Error("a second executor ended without an error")
	}
	var hello wire.HelloReply
	n.call(wire.MethodHello, nil, &hello)
	if hello.Pid != first.Process.Pid || hello.Protocol != wire.Protocol {
		t.Errorf("hello is %+v", hello)
	}
}

// upgrade executes the same program again, in place.
func (n *node) upgrade() {
	n.t.Helper()
	n.call(wire.MethodUpgrade, wire.UpgradeRequest{Path: programs.executor}, nil)
	for range n.client.Events() { // until the connection ends
	}
	n.client.Close()
	n.connect()
}

func TestUpgrade(t *testing.T) {
	n := start(t)
	busy := n.run([]string{"count", "-1", "1ms"})
	tty := n.run([]string{"print", "up", "echo-stdin"}, withTTY)
	pipe := n.run([]string{"echo-stdin"}, withStdin)
	quits := n.run([]string{"sleep", "300ms", "exit", "9"})
	over := n.run([]string{"exit", "8"})
	over.wait()
	tty.says("up")
	busy.says("3\n")
	watched := tty.attach(true)
	e := busy.exec(wire.ExecRequest{Process: process("sleep", "300ms", "print", "later", "exit", "6")})
	for range 5 {
		n.upgrade()
	}
	var hello wire.HelloReply
	if n.call(wire.MethodHello, nil, &hello); hello.Pid != n.cmd.Process.Pid {
		t.Errorf("process %d answers, want %d", hello.Pid, n.cmd.Process.Pid)
	}
	if code := e.wait(); code != 6 {
		t.Errorf("exec ended with %d", code)
	}
	if got := line(t, e.files["stdout"]); got != "later\n" {
		t.Errorf("exec wrote %q", got)
	}
	var all []wire.Info
	n.call(wire.MethodList, nil, &all)
	if len(all) != 5 {
		t.Errorf("list is %+v", all)
	}
	for _, c := range all {
		if c.ID == over.id && (c.Exit == nil || c.Exit.Code != 8) {
			t.Errorf("the exit is forgotten: %+v", c)
		}
	}
	// The exit may have been reported before the test had reconnected.
	eventually(t, func() bool { data, _ := os.ReadFile(quits.exit); return len(data) > 0 }, "no exit record")
	if data, _ := os.ReadFile(quits.exit); !strings.Contains(string(data), `"Code":9`) {
		t.Errorf("record is %s", data)
	}
	watched["stdin"].WriteString("typed\n")
	tty.says("typed\ntyped\n")
	if got := line(t, watched["stdout"]); !strings.Contains(got, "typed") {
		t.Errorf("attached client got %q", got)
	}
	for name, b := range map[string]*box{"a terminal": tty, "a pipe": pipe} { // a client could type in both before
		if a := b.attach(true); a["stdin"] == nil {
			t.Errorf("after an upgrade input to %s fails", name)
		} else {
			a["stdin"].WriteString("again\n")
			b.says("again\n")
		}
	}
	before := busy.numbered()
	eventually(t, func() bool { return busy.numbered() > before+20 }, "the log does not go on")
	busy.signal(unix.SIGKILL, false)
	if e := busy.wait(); e.Code != 137 || e.Message != "" {
		t.Errorf("exit is %+v", e)
	}
	b := n.run([]string{"exit", "3"})
	if e := b.wait(); e.Code != 3 {
		t.Errorf("exit of a new container is %+v", e)
	}
}

// An upgrade waits until failed starts are undone before it looks at the containers: it
// waits for the last start, and would otherwise find that one half undone.
func TestUpgradeWhileStartsFail(t *testing.T) {
	n := start(t)
	busy := n.run([]string{"count", "-1", "1ms"})
	var failing sync.WaitGroup
	over := make(chan struct{})
	for range 4 {
		b := n.request([]string{"exit", "0"}, func(_ *wire.RunRequest, s *specs.Spec) { s.Process.Args = []string{"/nosuch"} })
		failing.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				client, err := wire.Dial(t.Context(), n.socket())
				if err != nil {
					t.Error(err)
					return
				}
				for err = nil; !errors.Is(err, fault.Unavailable); { // until the upgrade is done
					if _, err = client.Call(t.Context(), wire.MethodRun, b.req, nil); err == nil {
						t.Error("/nosuch was started")
						return
					}
					select {
					case <-over:
						client.Close()
						return
					default:
					}
				}
				client.Close()
			}
		})
	}
	for range 20 {
		n.upgrade()
	}
	close(over)
	failing.Wait()
	before := busy.numbered()
	eventually(t, func() bool { return busy.numbered() > before+20 }, "the log does not go on")
	b := n.run([]string{"exit", "3"})
	if e := b.wait(); e.Code != 3 {
		t.Errorf("exit of a new container is %+v", e)
	}
}

// The environment by which the executor configures libcontainer's children does not reach
// the program that replaces it: with GOMAXPROCS=1, a container that prints without pause
// would hold up all others.
func TestUpgradeKeepsProcessors(t *testing.T) {
	n := start(t)
	n.upgrade()
	n.upgrade()
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", n.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for kv := range strings.SplitSeq(string(env), "\x00") {
		if strings.HasPrefix(kv, "GOMAXPROCS=") {
			t.Errorf("after an upgrade the executor has %s", kv)
		}
	}
}

// An upgrade to a file that is no program, or no executor, changes nothing.
func TestUpgradeRefused(t *testing.T) {
	n := start(t)
	b := n.run([]string{"count", "-1", "1ms"})
	n.fails(fault.Invalid, wire.MethodUpgrade, wire.UpgradeRequest{Path: "/nosuch"})
	// The check comes before any work is stopped for the upgrade.
	if err := n.fails(fault.Invalid, wire.MethodUpgrade, wire.UpgradeRequest{Path: "/etc/passwd"}); err == nil || !strings.Contains(err.Error(), "/etc/passwd is not a program") {
		t.Errorf("upgrade to what is no program: %v", err)
	}
	n.fails(fault.Invalid, wire.MethodUpgrade, wire.UpgradeRequest{Path: programs.testbin}) // a program that runs, but exits at once
	b.says("5\n")
	if code := b.exec(wire.ExecRequest{Process: process("exit", "4")}).wait(); code != 4 {
		t.Errorf("exit code %d", code)
	}
}

// withCRIU puts a program into PATH that reports a working CRIU.
func withCRIU(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "criu"), []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// An upgrade breaks the connection of a client that has frozen a container to checkpoint
// it: the container must not stay frozen.
func TestUpgradeThaws(t *testing.T) {
	withCRIU(t)
	n := start(t)
	b := n.run([]string{"count", "-1", "1ms"})
	b.says("3\n")
	n.call(wire.MethodFreeze, wire.FreezeRequest{IDs: []string{b.id}}, nil)
	n.fails(fault.WrongState, wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process("exit", "0")})
	n.upgrade()
	before := b.numbered()
	eventually(t, func() bool { return b.numbered() > before+20 }, "it stays frozen")
	if code := b.exec(wire.ExecRequest{Process: process("exit", "4")}).wait(); code != 4 {
		t.Errorf("exec ended with %d", code)
	}
}

// A log with a limit stays within it, however often the executor is killed or replaced while it
// rotates the log, and no line is lost.
func TestAdoptWithinTheLimit(t *testing.T) {
	n := start(t)
	limit := crilog.Limit{Size: 2000, Files: 1 << 20}
	b := n.run([]string{"count", "-1", "1ms"}, func(req *wire.RunRequest, _ *specs.Spec) { req.LogLimit = limit })
	files := func() []string {
		names, err := filepath.Glob(b.log + ".*")
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	for i := range 10 {
		before := len(files())
		eventually(t, func() bool { return len(files()) > before }, "the log is not rotated")
		if i%5 == 4 {
			n.upgrade()
			continue
		}
		n.crash(func() {})
		b.adopt()
	}
	b.signal(unix.SIGKILL, false)
	b.wait()
	var data []byte
	for _, name := range append(files(), b.log) {
		file, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if data = append(data, file...); int64(len(file)) > limit.Size {
			t.Errorf("%s has %d bytes", name, len(file))
		}
	}
	numbered(t, joined(t, data, crilog.Stdout))
}
