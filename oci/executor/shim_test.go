package executor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/procstat"
	"github.com/crisp-cri/crisp/oci/executor/shim"
	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/testenv"
)

// withShim has containerd's shim for runc run a container. It is called before the node is started, as
// testenv.RemoveShimDirs.
func withShim(t testing.TB) option {
	testenv.Need(t, "shims")
	testenv.RemoveShimDirs(t)
	return func(req *wire.RunRequest, _ *specs.Spec) {
		req.Shim = &wire.Shim{Path: filepath.Join(testenv.Shims(), "containerd-shim-runc-v2")}
	}
}

// inShimOf has the shim of another container run it.
func inShimOf(first *box) option {
	return func(req *wire.RunRequest, _ *specs.Spec) {
		req.Shim = &wire.Shim{Path: first.req.Shim.Path, Sandbox: first.id}
	}
}

// bundle returns the directory that a shim was given.
func (b *box) bundle() string { return filepath.Join(b.dir, "executor", "bundles", b.id) }

// A savedShim is what the executor saves of a container's shim.
type savedShim struct {
	ShimPID int
	Keeper  uint64
	Address struct{ Path string }
}

func (b *box) saved() (s savedShim) {
	b.t.Helper()
	data, err := os.ReadFile(filepath.Join(b.bundle(), "shim.json"))
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil || s.ShimPID <= 0 {
		b.t.Fatalf("shim of container %s: %s, %v", b.id, data, err)
	}
	return s
}

// shim returns the PID of the container's shim, and the path of its socket.
func (b *box) shim() (pid int, socket string) {
	b.t.Helper()
	s := b.saved()
	return s.ShimPID, s.Address.Path
}

// ends checks that the shim of a container that is removed ends, and leaves no socket.
func (b *box) shimEnds(remove func()) {
	b.t.Helper()
	pid, socket := b.shim()
	remove()
	eventually(b.t, func() bool { return !alive(pid) }, "the shim %d lives on", pid)
	if _, err := os.Stat(socket); err == nil {
		b.t.Errorf("socket %s is left", socket)
	}
	if _, err := os.Stat(b.bundle()); err == nil {
		b.t.Errorf("bundle %s is left", b.bundle())
	}
}

// childrenOf returns the processes whose parent is pid.
func childrenOf(pid int) (pids []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		pids = append(pids, procstat.PIDs(list)...)
	}
	return pids
}

func all(t testing.TB, f *os.File) string {
	t.Helper()
	f.SetReadDeadline(time.Now().Add(time.Minute))
	data, err := io.ReadAll(f)
	if err != nil {
		t.Fatalf("%s: %v after %q", f.Name(), err, data)
	}
	return string(data)
}

// What a container is asked for it does in a shim, too: output, exit codes, signals, execs, and
// nothing stays.
func TestShim(t *testing.T) {
	with := withShim(t)
	n := start(t)
	b := n.run([]string{"print", "out", "eprint", "err", "exit", "3"}, with)
	if b.reply.Pid <= 0 || b.reply.StartTime == 0 {
		t.Errorf("it runs as %+v", b.reply)
	}
	if e := b.wait(); e.Code != 3 || e.Reason != wire.ReasonError || e.Message != "" {
		t.Errorf("it ended with %+v", e)
	}
	if out, err := b.output(crilog.Stdout), b.output(crilog.Stderr); out != "out\n" || err != "err\n" {
		t.Errorf("its log has %q and %q", out, err)
	}
	b.shimEnds(b.delete)

	b = n.run([]string{"print", "up", "catch", "sleep", "for-ever"}, with)
	b.says("up")
	e := b.exec(wire.ExecRequest{Process: process("print", "one", "eprint", "two", "exit", "4")})
	if out, err := all(t, e.files["stdout"]), all(t, e.files["stderr"]); out != "one\n" || err != "two\n" {
		t.Errorf("the exec printed %q and %q", out, err)
	}
	if code := e.wait(); code != 4 {
		t.Errorf("the exec ended with %d", code)
	}
	b.fails(fault.Exists, wire.MethodRun, b.req)
	if _, socket := b.shim(); len(filepath.Join(n.dir, "s", filepath.Base(socket))) <= 107 && filepath.Dir(socket) != filepath.Join(n.dir, "s") {
		t.Errorf("the shim's socket is %s", socket)
	}
	b.signal(unix.SIGUSR1, false)
	if e := b.wait(); e.Code != 60+int32(unix.SIGUSR1) {
		t.Errorf("it ended with %+v", e)
	}
	b.fails(fault.WrongState, wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process("exit", "0")})
	b.shimEnds(b.delete)

	// One that cannot be started says why, and leaves its name free.
	b = n.request([]string{"exit", "0"}, with, func(_ *wire.RunRequest, s *specs.Spec) { s.Process.Args = []string{"/nosuch"} })
	if err := n.fails(nil, wire.MethodRun, b.req); !strings.Contains(err.Error(), "nosuch") || errors.Is(err, fault.Unavailable) {
		t.Errorf("the start failed with %v", err)
	}
	id := b.id
	n.run([]string{"exit", "0"}, with, func(req *wire.RunRequest, _ *specs.Spec) { req.ID = id })
	if e := n.waitExit(id); e.Code != 0 {
		t.Errorf("it ended with %+v", e)
	}
}

// The containers of a pod are in one shim, which ends with the first of them; the others come and go.
func TestShimOfAPod(t *testing.T) {
	with := withShim(t)
	n := start(t)
	first := n.run([]string{"sleep", "for-ever"}, with, func(req *wire.RunRequest, _ *specs.Spec) { req.LogPath = "" })
	for range 2 {
		b := n.run([]string{"print", "beside", "exit", "5"}, inShimOf(first))
		if e := b.wait(); e.Code != 5 || b.output(crilog.Stdout) != "beside\n" {
			t.Errorf("it ended with %+v and printed %q", e, b.output(crilog.Stdout))
		}
		b.delete()
	}
	stays := n.run([]string{"print", "stays", "sleep", "for-ever"}, inShimOf(first))
	stays.says("stays")
	first.signal(unix.SIGKILL, true)
	if e := first.wait(); e.Code != 137 || e.Reason != wire.ReasonError {
		t.Errorf("the first ended with %+v", e)
	}
	if code := stays.exec(wire.ExecRequest{Process: process("exit", "4")}).wait(); code != 4 {
		t.Errorf("exec beside it: %d", code)
	}
	e := stays.exec(wire.ExecRequest{Process: process("print", "up", "fork", "sleep", "for-ever")})
	line(t, e.files["stdout"])
	eventually(t, func() bool { return len(childrenOf(e.Pid)) > 0 }, "the exec has no child")
	child := childrenOf(e.Pid)[0]
	e.call(wire.MethodExecKill, wire.ExecRef{ExecID: e.ExecID}, nil)
	if code := e.wait(); code != 137 {
		t.Errorf("the exec that was killed ended with %d", code)
	}
	eventually(t, func() bool { return !alive(child) }, "what the exec has started lives on")
	stays.signal(unix.SIGKILL, true)
	stays.wait()
	stays.delete()
	first.shimEnds(first.delete)
	late := n.request([]string{"exit", "0"}, inShimOf(first))
	n.fails(fault.WrongState, wire.MethodRun, late.req)
}

// The terminal of a container is its shim's: what is typed and printed passes, and its size is set.
func TestShimTerminal(t *testing.T) {
	with := withShim(t)
	n := start(t)
	b := n.run([]string{"print", "up", "echo-stdin"}, with, withTTY)
	b.says("up")
	b.call(wire.MethodResize, wire.ResizeRequest{ID: b.id, Width: 100, Height: 30}, nil)
	a := b.attach(true)
	a["stdin"].WriteString("typed\n")
	until(t, a["stdout"], "typed\r\ntyped\r\n")
	b.says("typed\ntyped\n")
	e := b.exec(wire.ExecRequest{Process: process("print", "in", "echo-stdin"), TTY: true, Stdin: true, Width: 90, Height: 20})
	until(t, e.files["stdout"], "in\r\n")
	b.call(wire.MethodExecResize, wire.ExecResizeRequest{ExecID: e.ExecID, Width: 70, Height: 20}, nil)
	e.files["stdin"].WriteString("again\n")
	until(t, e.files["stdout"], "again\r\nagain\r\n")
	e.files["stdin"].WriteString("\x04") // end of file
	if code := e.wait(); code != 0 {
		t.Errorf("the exec ended with %d", code)
	}
	a["stdin"].WriteString("\x04")
	if e := b.wait(); e.Code != 0 {
		t.Errorf("it ended with %+v", e)
	}
}

// The end of what a client types is the end of the program's input, though the shim has its FIFO
// open, too.
func TestShimStdin(t *testing.T) {
	with := withShim(t)
	n := start(t)
	b := n.run([]string{"echo-stdin", "print", "end"}, with, withStdin, func(req *wire.RunRequest, _ *specs.Spec) { req.StdinOnce = true })
	e := b.exec(wire.ExecRequest{Process: process("echo-stdin", "exit", "6"), Stdin: true})
	text := strings.Repeat("a line of an exec\n", 20_000) // more than fits into the FIFO
	go func() {
		e.files["stdin"].WriteString(text)
		e.files["stdin"].Close()
	}()
	if got := all(t, e.files["stdout"]); got != text {
		t.Errorf("the exec copied %d bytes of %d", len(got), len(text))
	}
	if code := e.wait(); code != 6 {
		t.Errorf("the exec ended with %d", code)
	}
	a := b.attach(true)
	a["stdin"].WriteString("hello\n")
	until(t, a["stdout"], "hello\n")
	a["stdin"].Close()
	if e := b.wait(); e.Code != 0 || b.output(crilog.Stdout) != "hello\nend\n" {
		t.Errorf("it ended with %+v and printed %q", e, b.output(crilog.Stdout))
	}
}

// What a container prints last is in its log before its exit is told, also if it ends while no daemon
// runs: then its shim has what it printed.
func TestShimLastWords(t *testing.T) {
	with := withShim(t)
	n := start(t)
	first := n.run([]string{"sleep", "for-ever"}, with)
	for range 5 {
		b := n.run([]string{"count", "20000", "0s"}, inShimOf(first))
		b.wait()
		if got := b.numbered(); got != 20000 {
			t.Errorf("the log has %d lines", got)
		}
		b.delete()
	}
	n.lastWords(first, inShimOf(first))
}

// lastWords has containers of a shim end while no daemon runs, and checks that nothing is lost and that
// the shim has only open what it must have.
func (n *node) lastWords(first *box, with option) {
	n.t.Helper()
	shared := n.t.TempDir()
	kept := first.kept()
	var all []*box
	for range 3 {
		all = append(all, n.run([]string{"print", "up", "await", "/shared/go", "print", "last", "eprint", "words", "exit", "3"}, with,
			func(_ *wire.RunRequest, s *specs.Spec) {
				s.Mounts = append(s.Mounts, specs.Mount{Destination: "/shared", Type: "bind", Source: shared, Options: []string{"rbind"}})
			}))
	}
	for _, b := range all {
		b.says("up")
	}
	watched := all[1].attach(false)
	all[2].exec(wire.ExecRequest{Process: process("sleep", "for-ever")})
	if got := first.kept(); got != kept+2*len(all) {
		n.t.Errorf("the shim has %d files in flight, and had %d before", got, kept)
	}
	n.crash(func() {
		for _, b := range append(all, first) {
			b.drop()
		}
		if err := os.WriteFile(filepath.Join(shared, "go"), nil, 0o644); err != nil {
			n.t.Fatal(err)
		}
		for _, b := range all {
			eventually(n.t, func() bool { return !first.writes(b) }, "the shim has the output of %s open", b.id)
		}
	})
	first.adopt()
	for _, b := range all {
		b.adopt()
		if e := b.wait(); e.Code != 3 {
			n.t.Errorf("it ended with %+v", e)
		}
		if out, err := b.output(crilog.Stdout), b.output(crilog.Stderr); out != "up\nlast\n" || err != "words\n" {
			n.t.Errorf("its log has %q and %q", out, err)
		}
		b.delete()
	}
	for _, f := range watched {
		f.Close()
	}
	if got := first.kept(); got != kept {
		n.t.Errorf("the shim has %d files in flight, and had %d before", got, kept)
	}
}

// Of what the shim keeps open unknowingly, its containers have nothing; and a process that got hold of
// it could not have another pod's output put into it.
func TestShimKeepsItsPodOnly(t *testing.T) {
	with := withShim(t)
	n := start(t)
	first, other := n.run([]string{"sleep", "for-ever"}, with), n.run([]string{"sleep", "for-ever"}, with)
	b := n.run([]string{"sleep", "for-ever"}, inShimOf(first))
	e := b.exec(wire.ExecRequest{Process: process("sleep", "for-ever")})
	pid, _ := first.shim()
	if got := first.keepers(); !slices.Equal(got, []int{pid}) {
		t.Errorf("%v have the sockets, among %d, %d and %d", got, first.reply.Pid, b.reply.Pid, e.Pid)
	}
	h, err := shim.OpenKeeper(pid, first.saved().Keeper)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for _, name := range []string{other.id, "../bundles/" + other.id, "nosuch", ""} {
		if err := h.Put(name); err != nil {
			t.Error(err)
		}
	}
	b.signal(unix.SIGKILL, true)
	b.wait()
	b.delete()
	if got := first.kept(); got != 2 {
		t.Errorf("the shim has %d files in flight, want those of one container", got)
	}
	if got := other.kept(); got != 2 {
		t.Errorf("the other shim has %d files in flight", got)
	}
}

// keepers returns the processes that have the sockets which the container's shim has inherited.
func (b *box) keepers() (pids []int) {
	b.t.Helper()
	pid, _ := b.shim()
	socket, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/100", pid))
	if err != nil || socket != fmt.Sprintf("socket:[%d]", b.saved().Keeper) {
		b.t.Fatalf("the shim has %q, %v", socket, err)
	}
	links, _ := filepath.Glob("/proc/[1-9]*/fd/*")
	for _, link := range links {
		if to, _ := os.Readlink(link); to == socket {
			pid, _ := strconv.Atoi(strings.Split(link, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}

// writes reports whether the shim has the output of one of its containers open.
func (b *box) writes(to *box) bool {
	pid, _ := b.shim()
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	return slices.ContainsFunc(links, func(link string) bool {
		name, _ := os.Readlink(link)
		return strings.HasPrefix(name, to.bundle()+"/std")
	})
}

// kept returns how many files are in flight in the sockets of the container's shim.
func (b *box) kept() (files int) {
	b.t.Helper()
	pid, _ := b.shim()
	infos, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	for _, info := range infos {
		data, _ := os.ReadFile(info)
		if _, after, ok := strings.Cut(string(data), "scm_fds:"); ok {
			n, err := strconv.Atoi(strings.TrimSpace(strings.SplitN(after, "\n", 2)[0]))
			if err != nil {
				b.t.Fatalf("%s: %s", info, data)
			}
			files += n
		}
	}
	return files
}

// The executor is killed and nothing is lost, not even if no descriptor was kept: a FIFO is opened
// again by its name. The codes of exits meanwhile are the shim's to tell, on any kernel.
func TestShimAdopt(t *testing.T) {
	with := withShim(t)
	n := start(t)
	first := n.run([]string{"sleep", "for-ever"}, with)
	busy := n.run([]string{"count", "-1", "1ms"}, inShimOf(first), withStdin)
	quits := n.run([]string{"await", "/tmp/go", "exit", "9"}, inShimOf(first))
	tty := n.run([]string{"print", "up", "echo-stdin"}, with, withTTY)
	gone := n.run([]string{"sleep", "for-ever"}, inShimOf(first))
	tty.says("up")
	busy.says("3\n")
	left := busy.exec(wire.ExecRequest{Process: process("sleep", "for-ever")})
	n.crash(func() {
		unix.Kill(gone.reply.Pid, unix.SIGKILL)
		quits.touch("tmp/go")
		eventually(t, func() bool { return !alive(gone.reply.Pid) && !alive(quits.reply.Pid) }, "the containers live on")
	})
	before := busy.numbered()
	busy.drop() // crispd was killed, too
	for _, b := range []*box{first, busy, quits, tty, gone} {
		b.adopt()
	}
	eventually(t, func() bool { return !alive(left.Pid) }, "an exec of the executor that died is left")
	eventually(t, func() bool { return busy.numbered() > before+20 }, "the log does not go on")
	for b, want := range map[*box]int32{quits: 9, gone: 137} {
		if e := b.wait(); e.Code != want || e.Message != "" {
			t.Errorf("exit of an adopted container is %+v, want code %d", e, want)
		}
	}
	if code := busy.exec(wire.ExecRequest{Process: process("exit", "4")}).wait(); code != 4 {
		t.Errorf("exec in an adopted container: %d", code)
	}
	a := tty.attach(true)
	a["stdin"].WriteString("typed\n")
	tty.says("typed\ntyped\n")
	busy.signal(unix.SIGKILL, true)
	if e := busy.wait(); e.Code != 137 {
		t.Errorf("exit is %+v", e)
	}
	busy.delete()
	tty.signal(unix.SIGKILL, true)
	tty.wait()
	tty.shimEnds(tty.delete)
}

// No line is lost and none comes twice, however often the executor is killed.
func TestShimAdoptLosesNothing(t *testing.T) {
	with := withShim(t)
	n := start(t)
	first := n.run([]string{"sleep", "for-ever"}, with)
	quick := n.run([]string{"count", "-1", "200us"}, inShimOf(first))
	for range 10 {
		before, _ := os.Stat(quick.log)
		eventually(t, func() bool { now, err := os.Stat(quick.log); return err == nil && now.Size() > before.Size() }, "the log stands still")
		n.crash(func() {})
		first.adopt()
		quick.adopt()
	}
	before := quick.numbered()
	eventually(t, func() bool { return quick.numbered() > before+20 }, "the log does not go on")
}

// What the executor that died has left of execs is ended, and nothing that the next one has begun
// meanwhile.
func TestShimAdoptEndsNoExecOfItsOwn(t *testing.T) {
	with := withShim(t)
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"}, with)
	for range 10 {
		b.exec(wire.ExecRequest{Process: process("sleep", "for-ever")})
		n.crash(func() {})
		b.adopt()
		var execs []*execed
		for range 4 {
			execs = append(execs, b.exec(wire.ExecRequest{Process: process("sleep", "200ms", "exit", "5")}))
		}
		for i, e := range execs {
			if code := e.wait(); code != 5 {
				t.Fatalf("exec %d has ended with %d", i, code)
			}
		}
	}
}

// An executor that replaces itself asks the shims again: for the exits of containers and of execs.
func TestShimUpgrade(t *testing.T) {
	with := withShim(t)
	n := start(t)
	busy := n.run([]string{"count", "-1", "1ms"}, with)
	tty := n.run([]string{"print", "up", "echo-stdin"}, with, withTTY)
	pipe := n.run([]string{"echo-stdin"}, inShimOf(busy), withStdin)
	quits := n.run([]string{"await", "/tmp/go", "exit", "9"}, inShimOf(busy))
	over := n.run([]string{"exit", "8"}, inShimOf(busy))
	over.wait()
	tty.says("up")
	busy.says("3\n")
	watched := tty.attach(true)
	e := busy.exec(wire.ExecRequest{Process: process("sleep", "2s", "print", "later", "exit", "6")})
	typed := busy.exec(wire.ExecRequest{Process: process("echo-stdin", "exit", "7"), Stdin: true})
	for range 3 {
		n.upgrade()
	}
	quits.touch("tmp/go") // not before: without a subscriber no exit is told
	typed.files["stdin"].WriteString("to the exec\n")
	if got := line(t, typed.files["stdout"]); got != "to the exec\n" {
		t.Errorf("the exec copied %q", got)
	}
	typed.files["stdin"].Close()
	if code := typed.wait(); code != 7 {
		t.Errorf("the exec whose input ended ended with %d", code)
	}
	if got := line(t, e.files["stdout"]); got != "later\n" {
		t.Errorf("the exec printed %q", got)
	}
	if code := e.wait(); code != 6 {
		t.Errorf("the exec ended with %d", code)
	}
	if e := quits.wait(); e.Code != 9 {
		t.Errorf("it ended with %+v", e)
	}
	watched["stdin"].WriteString("typed\n")
	tty.says("typed\ntyped\n")
	a := pipe.attach(true)
	a["stdin"].WriteString("piped\n")
	pipe.says("piped")
	before := busy.numbered()
	eventually(t, func() bool { return busy.numbered() > before+20 }, "the log does not go on")
	over.delete()
}

// A shim that is killed takes its containers along: they end with a reason that names it, no process
// is left, and the next one of the same name runs.
func TestShimThatDies(t *testing.T) {
	with := withShim(t)
	n := start(t)
	first := n.run([]string{"sleep", "for-ever"}, with)
	busy := n.run([]string{"count", "-1", "1ms"}, inShimOf(first))
	e := busy.exec(wire.ExecRequest{Process: process("sleep", "for-ever")})
	busy.says("3\n")
	pid, _ := first.shim()
	unix.Kill(pid, unix.SIGKILL)
	for _, b := range []*box{first, busy} {
		x := b.wait()
		if x.Code != 137 || x.Reason != wire.ReasonShimGone || !strings.Contains(x.Message, first.req.Shim.Path) {
			t.Errorf("it ended with %+v", x)
		}
		if alive(b.reply.Pid) {
			t.Errorf("process %d lives on", b.reply.Pid)
		}
	}
	if code := e.wait(); code != 137 {
		t.Errorf("the exec ended with %d", code)
	}
	busy.delete()
	first.delete()
	if _, err := os.Stat(first.bundle()); err == nil {
		t.Error("the bundle is left")
	}
	id := first.id
	n.run([]string{"exit", "2"}, with, func(req *wire.RunRequest, _ *specs.Spec) { req.ID = id })
	if e := n.waitExit(id); e.Code != 2 {
		t.Errorf("the next one ended with %+v", e)
	}
}

// A shim that hangs is killed when a container of it has to end.
func TestShimThatHangs(t *testing.T) {
	with := withShim(t)
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"}, with)
	pid, _ := b.shim()
	unix.Kill(pid, unix.SIGSTOP)
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := n.client.Call(ctx, wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process("exit", "0")}, nil); err == nil {
		t.Error("an exec was begun")
	}
	if _, err := n.client.Call(t.Context(), wire.MethodStats, wire.Ref{ID: b.id}, nil); err == nil || errors.Is(err, fault.Unavailable) {
		t.Errorf("stats: %v", err)
	}
	b.signal(unix.SIGKILL, true)
	if e := b.wait(); e.Code != 137 || e.Reason != wire.ReasonShimGone || !strings.Contains(e.Message, "did not answer") {
		t.Errorf("it ended with %+v after %v", e, time.Since(began))
	}
	b.shimEnds(b.delete)
	again := n.run([]string{"exit", "2"}, with)
	if e := again.wait(); e.Code != 2 {
		t.Errorf("the next one ended with %+v", e)
	}
}

// An executor that is killed in the middle of a start leaves what the next one finds by the
// container's name alone: the shim, its bundle and its processes.
func TestShimHalfMade(t *testing.T) {
	with := withShim(t)
	n := start(t)
	for _, after := range []string{"config.json", "log", "init.pid"} {
		b := n.request([]string{"sleep", "for-ever"}, with)
		n.begin(t.Context(), b)
		eventually(t, func() bool {
			_, err := os.Stat(filepath.Join(b.bundle(), after))
			return err == nil
		}, "there is no %s", after)
		n.crash(func() {})
		b.delete()
		if _, err := os.Stat(b.bundle()); err == nil {
			t.Errorf("after %s the bundle is left", after)
		}
		if pids := shimsOf(b); len(pids) > 0 {
			t.Errorf("after %s the processes %v are left", after, pids)
		}
		n.run([]string{"exit", "2"}, with, func(req *wire.RunRequest, _ *specs.Spec) { req.ID = b.id })
		if e := b.wait(); e.Code != 2 {
			t.Errorf("the next one ended with %+v", e)
		}
		b.delete()
	}
}

// shimsOf returns the processes whose working directory is, or was, the container's bundle.
func shimsOf(b *box) (pids []int) {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, b.bundle()) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(link)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// A container of runc's shim has its own cgroup, so that its limits and its OOM kills are as those of
// others; its shim applies changes.
func TestShimLimits(t *testing.T) {
	with := withShim(t)
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"}, with, withMemory(64<<20))
	if len(b.reply.Cgroups) == 0 {
		t.Fatal("it has no cgroups")
	}
	less := int64(48 << 20)
	resources, _ := json.Marshal(&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &less}})
	b.call(wire.MethodUpdate, wire.UpdateRequest{ID: b.id, Resources: resources}, nil)
	file := filepath.Join(b.reply.Cgroups["memory"], "memory.limit_in_bytes")
	if _, v1 := b.reply.Cgroups["memory"]; !v1 {
		file = filepath.Join(b.reply.Cgroups[""], "memory.max")
	}
	if data, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(data)) != strconv.FormatInt(less, 10) {
		t.Errorf("the limit is %s, %v", data, err)
	}
	b.signal(unix.SIGKILL, true)
	b.wait()
	eats := n.run([]string{"eat", "200"}, inShimOf(b), withMemory(32<<20))
	if e := eats.wait(); e.Code != 137 || !e.OOMKilled || e.Reason != wire.ReasonOOMKilled {
		t.Errorf("it ended with %+v", e)
	}
}
