package executor_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
)

func withStdin(r *wire.RunRequest, _ *specs.Spec) { r.Stdin = true }
func withTTY(r *wire.RunRequest, s *specs.Spec) {
	r.TTY, r.Stdin, s.Process.Terminal = true, true, true
}

// attach attaches a client and returns its descriptors by name.
func (b *box) attach(stdin bool) map[string]*os.File {
	b.t.Helper()
	files := make(map[string]*os.File)
	for _, f := range b.call(wire.MethodAttach, wire.AttachRequest{ID: b.id, Stdin: stdin}, nil) {
		files[f.Name()] = f
		b.t.Cleanup(func() { f.Close() })
	}
	return files
}

// No line of a busy container is lost, and its last output is in the log when its exit is
// reported.
func TestLogIsComplete(t *testing.T) {
	n := start(t)
	const lines = 30000
	b := n.run([]string{"count", fmt.Sprint(lines), "0s"})
	b.wait()
	var want strings.Builder
	for i := range lines {
		fmt.Fprintln(&want, i)
	}
	if got := b.output(crilog.Stdout); got != want.String() {
		t.Errorf("log has %d bytes, want %d", len(got), want.Len())
	}
}

// A process outside of the container that holds its stdout must not delay its exit.
func TestExitDoesNotWaitForForeignWriters(t *testing.T) {
	n := start(t)
	b := n.run([]string{"print", "x", "sleep", "for-ever"})
	b.says("x")
	other, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/1", b.reply.Pid), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.WriteString("last words\n"); err != nil {
		t.Fatal(err)
	}
	b.signal(unix.SIGKILL, false)
	b.wait()
	if got := b.output(crilog.Stdout); got != "x\nlast words\n" {
		t.Errorf("log is %q", got)
	}
}

// A last line without \n is logged, also if it is read together with the end of the output.
func TestLastWords(t *testing.T) {
	n := start(t)
	b := n.run([]string{"print", "x", "sleep", "for-ever"})
	b.says("x")
	n.cmd.Process.Signal(unix.SIGSTOP)
	defer n.cmd.Process.Signal(unix.SIGCONT)
	hasState(t, n.cmd.Process.Pid, "T")
	other, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/1", b.reply.Pid), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = other.WriteString("last\nwords")
	if err := errors.Join(err, other.Close(), unix.Kill(b.reply.Pid, unix.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	hasState(t, b.reply.Pid, "Z")
	n.cmd.Process.Signal(unix.SIGCONT)
	b.wait()
	if got := b.output(crilog.Stdout); got != "x\nlast\nwords" {
		t.Errorf("log is %q", got)
	}
}

func TestReopenLog(t *testing.T) {
	n := start(t)
	b := n.run([]string{"count", "-1", "1ms"})
	var rotated []byte
	for i := range 5 {
		b.says("\n")
		old := b.log + fmt.Sprint(i)
		if err := os.Rename(b.log, old); err != nil {
			t.Fatal(err)
		}
		n.call(wire.MethodReopenLog, wire.Ref{ID: b.id}, nil)
		if _, err := os.Stat(b.log); err != nil {
			t.Fatalf("after reopen: %v", err)
		}
		data, err := os.ReadFile(old)
		if err != nil {
			t.Fatal(err)
		}
		rotated = append(rotated, data...)
	}
	b.signal(unix.SIGKILL, false)
	b.wait()
	data, err := os.ReadFile(b.log)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(joined(t, append(rotated, data...), crilog.Stdout))
	for i, s := range got {
		if s != fmt.Sprint(i) {
			t.Fatalf("line %d is %q", i, s)
		}
	}
	if len(got) == 0 {
		t.Error("no lines")
	}
}

func TestAttach(t *testing.T) {
	n := start(t)
	b := n.run([]string{"echo-stdin"}, withStdin)
	one, two := b.attach(true), b.attach(false)
	if one["stdin"] == nil || one["stderr"] == nil || two["stdin"] != nil {
		t.Fatalf("attached %v and %v", one, two)
	}
	if _, err := one["stdin"].WriteString("hello\n"); err != nil {
		t.Fatal(err)
	}
	for _, a := range []map[string]*os.File{one, two} {
		if got := line(t, a["stdout"]); got != "hello\n" {
			t.Errorf("got %q", got)
		}
	}
	// A client that detaches changes nothing for others: without StdinOnce stdin stays
	// open.
	for _, f := range one {
		f.Close()
	}
	three := b.attach(true)
	if _, err := three["stdin"].WriteString("again\n"); err != nil {
		t.Fatal(err)
	}
	if got := line(t, two["stdout"]); got != "again\n" {
		t.Errorf("got %q", got)
	}
	b.says("hello\nagain\n")
	b.signal(unix.SIGKILL, false)
	b.wait()
	if rest, err := io.ReadAll(two["stdout"]); err != nil || len(rest) != 0 {
		t.Errorf("after the exit: %q, %v", rest, err)
	}
	n.fails(fault.WrongState, wire.MethodAttach, wire.AttachRequest{ID: b.id})
}

// `echo x | kubectl run -i` ends because stdin does.
func TestStdinOnce(t *testing.T) {
	n := start(t)
	b := n.run([]string{"echo-stdin"}, withStdin, func(r *wire.RunRequest, _ *specs.Spec) { r.StdinOnce = true })
	a := b.attach(true)
	if _, err := a["stdin"].WriteString("x\n"); err != nil {
		t.Fatal(err)
	}
	a["stdin"].Close()
	if e := b.wait(); e.Code != 0 || e.Reason != wire.ReasonCompleted {
		t.Errorf("exit is %+v", e)
	}
	if got := line(t, a["stdout"]); got != "x\n" {
		t.Errorf("got %q", got)
	}
}

// A client that does not read is dropped; the container and its log are not affected.
func TestSlowAttachedClient(t *testing.T) {
	n := start(t)
	b := n.run([]string{"await", "/tmp/attached", "count", "250000", "0s", "print", "done", "sleep", "for-ever"})
	a := b.attach(false)
	b.touch("tmp/attached")
	b.says("done")
	data, err := io.ReadAll(a["stdout"])
	if err != nil || len(data) == 0 || strings.Contains(string(data), "done") {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

func TestTerminal(t *testing.T) {
	n := start(t)
	b := n.run([]string{"print", "ready", "echo-stdin"}, withTTY)
	if len(b.fds) != 2 || b.fds[1].Name() != wire.FDPTY {
		t.Fatalf("descriptors %v", b.fds)
	}
	a := b.attach(true)
	n.call(wire.MethodResize, wire.ResizeRequest{ID: b.id, Width: 91, Height: 17}, nil)
	ws, err := unix.IoctlGetWinsize(int(b.fds[1].Fd()), unix.TIOCGWINSZ)
	if err != nil || ws.Col != 91 || ws.Row != 17 {
		t.Errorf("size is %+v, %v", ws, err)
	}
	b.says("ready\n") // else the echo may come before
	if _, err := a["stdin"].WriteString("typed\n"); err != nil {
		t.Fatal(err)
	}
	b.says("typed\ntyped\n") // the terminal's echo, and echo-stdin's
	if _, err := a["stdin"].WriteString("\x04"); err != nil {
		t.Fatal(err)
	}
	if e := b.wait(); e.Code != 0 {
		t.Errorf("exit is %+v", e)
	}
	if got := b.output(crilog.Stdout); strings.Contains(got, "\r") || !strings.HasPrefix(got, "ready\n") {
		t.Errorf("log is %q", got)
	}
}

func TestResizeWithoutTerminal(t *testing.T) {
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"})
	n.fails(fault.Invalid, wire.MethodResize, wire.ResizeRequest{ID: b.id, Width: 1, Height: 1})
}

func TestExec(t *testing.T) {
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"})
	e := b.exec(wire.ExecRequest{Process: process("print", "out", "eprint", "err", "echo-stdin", "exit", "5"), Stdin: true})
	if _, err := e.files["stdin"].WriteString("typed\n"); err != nil {
		t.Fatal(err)
	}
	e.files["stdin"].Close()
	out, err := io.ReadAll(e.files["stdout"])
	if err != nil || string(out) != "out\ntyped\n" {
		t.Errorf("stdout is %q, %v", out, err)
	}
	if errs, err := io.ReadAll(e.files["stderr"]); err != nil || string(errs) != "err\n" {
		t.Errorf("stderr is %q, %v", errs, err)
	}
	if code := e.wait(); code != 5 {
		t.Errorf("exit code %d", code)
	}
	// The exec is forgotten after its code was sent; until then a second wait may still get
	// it.
	eventually(t, func() bool {
		_, err := n.client.Call(t.Context(), wire.MethodExecWait, wire.ExecRef{ExecID: e.ExecID}, nil)
		return errors.Is(err, fault.NotFound)
	}, "the exec %s is not forgotten", e.ExecID)
	n.call(wire.MethodExecKill, wire.ExecRef{ExecID: e.ExecID}, nil)
	if got := b.output(crilog.Stdout); got != "" {
		t.Errorf("the exec wrote %q into the log", got)
	}
}

func TestExecTerminal(t *testing.T) {
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"})
	e := b.exec(wire.ExecRequest{Process: process("echo-stdin"), TTY: true, Width: 40, Height: 10})
	pty := e.files["pty"]
	if pty == nil || len(e.files) != 1 {
		t.Fatalf("got %v", e.files)
	}
	ws, err := unix.IoctlGetWinsize(int(pty.Fd()), unix.TIOCGWINSZ)
	if err != nil || ws.Col != 40 || ws.Row != 10 {
		t.Errorf("size is %+v, %v", ws, err)
	}
	if _, err := pty.WriteString("x\x04\x04"); err != nil {
		t.Fatal(err)
	}
	if code := e.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestExecErrors(t *testing.T) {
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"})
	err := n.fails(nil, wire.MethodExec, wire.ExecRequest{ID: b.id, Process: []byte(`{"args":["nosuch"],"cwd":"/","user":{"uid":0,"gid":0}}`)})
	if want := `exec: "nosuch": executable file not found in $PATH`; err == nil || err.Error() != want {
		t.Errorf("error is %q, want %q", err, want)
	}
	n.fails(fault.NotFound, wire.MethodExec, wire.ExecRequest{ID: "nobody", Process: process()})
	n.fails(fault.Invalid, wire.MethodExec, wire.ExecRequest{ID: b.id, Process: []byte(`{"cwd":"/"}`)})
	e := b.exec(wire.ExecRequest{Process: process("exit", "4")})
	if code := e.wait(); code != 4 {
		t.Errorf("the retry ended with %d", code)
	}
}

// Many execs of one container at once do not wait for one another.
func TestExecsAtOnce(t *testing.T) {
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"})
	done := make(chan error, 10)
	for range cap(done) {
		go func() {
			var reply wire.ExecReply
			files, err := n.client.Call(t.Context(), wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process("exit", "6")}, &reply)
			for _, f := range files {
				f.Close()
			}
			var code wire.ExecWaitReply
			if err == nil {
				_, err = n.client.Call(t.Context(), wire.MethodExecWait, wire.ExecRef{ExecID: reply.ExecID}, &code)
			}
			if err == nil && code.Code != 6 {
				err = fmt.Errorf("exit code %d", code.Code)
			}
			done <- err
		}()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// The kill of an exec takes all processes that it started, whatever cgroup or session they
// are in, and none of the container's own.
func TestExecKillTakesItsTree(t *testing.T) {
	n := start(t)
	b := n.run([]string{"print", "up", "sleep", "for-ever"})
	b.says("up")
	e := b.exec(wire.ExecRequest{Process: process("spawn", "print", "child", "sleep", "for-ever")})
	if got := line(t, e.files["stdout"]); got != "child\n" {
		t.Fatalf("got %q", got)
	}
	if code := e.wait(); code != 0 { // its child stays as an orphan
		t.Errorf("exit code %d", code)
	}
	e = b.exec(wire.ExecRequest{Process: process("fork", "print", "child", "sleep", "for-ever")})
	if got := line(t, e.files["stdout"]); got != "child\n" {
		t.Fatalf("got %q", got)
	}
	n.call(wire.MethodExecKill, wire.ExecRef{ExecID: e.ExecID}, nil)
	if code := e.wait(); code != 137 {
		t.Errorf("exit code %d", code)
	}
	if rest, err := io.ReadAll(e.files["stdout"]); err != nil || len(rest) > 0 {
		t.Errorf("the child still has stdout: %q, %v", rest, err)
	}
	if !alive(b.reply.Pid) {
		t.Error("the container died with its exec")
	}
}

// Execs are killed when crispd dies: their output would be lost.
func TestExecEndsWithItsConnection(t *testing.T) {
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"})
	other, err := wire.Dial(t.Context(), n.socket())
	if err != nil {
		t.Fatal(err)
	}
	var reply wire.ExecReply
	files, err := other.Call(t.Context(), wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process("sleep", "for-ever")}, &reply)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		defer f.Close()
	}
	other.Close()
	eventually(t, func() bool { return !alive(reply.Pid) }, "the exec lives on")
	if !alive(b.reply.Pid) {
		t.Error("the container died with it")
	}
}

// A wait that its caller gives up leaves nothing behind, and the exec can be waited for
// again.
func TestAbandonedWait(t *testing.T) {
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"})
	e := b.exec(wire.ExecRequest{Process: process("await", "/tmp/go", "exit", "3")})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := n.client.Call(ctx, wire.MethodExecWait, wire.ExecRef{ExecID: e.ExecID}, nil); err != ctx.Err() {
		t.Errorf("abandoned wait: %v", err)
	}
	n.call(wire.MethodPing, nil, nil) // by then the executor has read that the wait was given up
	b.touch("tmp/go")
	if code := e.wait(); code != 3 {
		t.Errorf("exit code %d", code)
	}
}
