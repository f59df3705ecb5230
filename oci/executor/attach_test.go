package executor_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/oci/wire"
)

// attachArg makes the test binary attach to a container's stdin and wait to be killed, like
// a crispd that dies.
const attachArg = "attach-and-wait"

func attachAndWait(socket, id string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	c, err := wire.Dial(context.Background(), socket)
	fail(err)
	files, err := c.Call(context.Background(), wire.MethodAttach, wire.AttachRequest{ID: id, Stdin: true}, nil)
	fail(err)
	for _, f := range files {
		if f.Name() == wire.FDStdin {
			_, err := f.WriteString("first\n")
			fail(err)
		}
	}
	time.Sleep(time.Hour)
}

// With `kubectl run -i`, the end of crispd is not the end of the container's stdin.
func TestStdinOnceSurvivesItsClient(t *testing.T) {
	n := start(t)
	b := n.run([]string{"echo-stdin"}, withStdin, func(r *wire.RunRequest, _ *specs.Spec) { r.StdinOnce = true })
	for _, how := range []unix.Signal{unix.SIGKILL, unix.SIGTERM} {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		client := exec.Command(self, attachArg, n.socket(), b.id)
		client.Stderr = os.Stderr
		if err := client.Start(); err != nil {
			t.Fatal(err)
		}
		b.says("first\n")
		client.Process.Signal(how)
		client.Wait()
		time.Sleep(100 * time.Millisecond) // in which a wrong executor would close stdin
	}
	a := b.attach(true)
	if _, err := a["stdin"].WriteString("second\n"); err != nil {
		t.Fatal(err)
	}
	b.says("second\n")
	a["stdin"].Close()
	if e := b.wait(); e.Code != 0 {
		t.Errorf("exit is %+v", e)
	}
}

// A client with stdin on a terminal gets all of its output, however slowly it reads, also
// across an upgrade and the container's end.
func TestTerminalWaitsForItsClient(t *testing.T) {
	n := start(t)
	b := n.run([]string{"await", "/tmp/attached", "count", "600000", "0s", "print", "done"}, withTTY)
	a := b.attach(true)
	if err := os.WriteFile(filepath.Join(b.root, "tmp/attached"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	b.staysSilent()
	n.upgrade()
	var got strings.Builder
	a["stdout"].SetReadDeadline(time.Now().Add(4 * time.Minute))
	if _, err := io.Copy(&got, a["stdout"]); err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(got.String(), "\r\n", "\n")
	lines := strings.Fields(text)
	if len(lines) != 600001 || lines[600000] != "done" {
		t.Errorf("%d lines came", len(lines))
	}
	b.wait()
	if log := b.output(crilog.Stdout); log != text {
		t.Errorf("the log has %d bytes, the client %d", len(log), len(text))
	}
}

// When a container ends, what is still in its terminal reaches the log and the client that
// the executor waits for.
func TestTerminalThatEndsWhileItsClientIsWaitedFor(t *testing.T) {
	n := start(t)
	b := n.run([]string{"echo-stdin"}, withTTY)
	client := b.attach(true)
	types := func(text string) {
		if _, err := client["stdin"].WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	size := func() int64 {
		info, err := os.Stat(b.log)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	for waits := false; !waits; {
		before := size()
		types(strings.Repeat("x", 3000) + "\n")
		for range 200 { // a second
			if waits = size() < before+3000; !waits {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	types("last words\n\x04")
	eventually(t, func() bool {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", b.reply.Pid))
		return err != nil || strings.Contains(string(data), ") Z ")
	}, "the container does not end")
	b.staysSilent()
	text, err := io.ReadAll(client["stdout"])
	if err != nil {
		t.Fatal(err)
	}
	b.wait()
	for what, text := range map[string]string{"client": strings.ReplaceAll(string(text), "\r\n", "\n"), "log": b.output(crilog.Stdout)} {
		if !strings.HasSuffix(text, "\nlast words\n") {
			t.Errorf("the %s ends with %q", what, text[max(0, len(text)-20):])
		}
	}
}

// staysSilent waits until the log is not empty and has stopped growing.
func (b *box) staysSilent() {
	b.t.Helper()
	var before int64
	for same := 0; same < 100; time.Sleep(10 * time.Millisecond) {
		info, err := os.Stat(b.log)
		if err != nil {
			b.t.Fatal(err)
		}
		if same++; info.Size() != before || before == 0 {
			before, same = info.Size(), 0
		}
	}
}

// A client that reads nothing is dropped after a while; the container keeps running.
func TestTerminalGivesUpItsClient(t *testing.T) {
	n := start(t)
	b := n.run([]string{"await", "/tmp/attached", "count", "300000", "0s", "print", "done", "sleep", "for-ever"}, withTTY)
	a := b.attach(true)
	b.touch("tmp/attached")
	b.says("done")
	data, err := io.ReadAll(a["stdout"])
	if err != nil || len(data) == 0 || strings.Contains(string(data), "done") {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

// A `kubectl run -i` that no longer reads the output may continue to type, also after an upgrade of
// the executor, and the end of its input is the end of the container's.
func TestUpgradeKeepsWhoOnlyTypes(t *testing.T) {
	n := start(t)
	b := n.run([]string{"echo-stdin"}, withStdin, func(r *wire.RunRequest, _ *specs.Spec) { r.StdinOnce = true })
	a := b.attach(true)
	if _, err := a["stdin"].WriteString("first\n"); err != nil {
		t.Fatal(err)
	}
	b.says("first\n")
	fds := func() int { return n.open("") }
	before := fds()
	a["stdout"].Close()
	a["stderr"].Close()
	eventually(t, func() bool { return fds() <= before-2 }, "the executor keeps the ends of a client that has left")
	n.upgrade()
	if _, err := a["stdin"].WriteString("second\n"); err != nil {
		t.Fatalf("typing after the upgrade: %v", err)
	}
	b.says("second\n")
	n.upgrade()
	a["stdin"].Close()
	if e := b.wait(); e.Code != 0 {
		t.Errorf("exit is %+v", e)
	}
}
