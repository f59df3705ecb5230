package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/streaming"
)

func TestExecSync(t *testing.T) {
	t.Parallel() // it waits for a time limit of a second
	n := newNode(t)
	id := n.begin(t, n.run(t, pod("a")), forever("x"))
	exec := func(ctx context.Context, timeout int64, script ...string) (*cri.ExecSyncResponse, error) {
		return n.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: id, Cmd: append([]string{"testbin"}, script...), Timeout: timeout})
	}
	resp, err := exec(t.Context(), 0, "print", "to out", "eprint", "to err", "exit", "7")
	if err != nil || string(resp.Stdout) != "to out\n" || string(resp.Stderr) != "to err\n" || resp.ExitCode != 7 {
		t.Errorf("got %v, %v", resp, err)
	}
	_, err = exec(t.Context(), 1, "sleep", "for-ever")
	wantCode(t, "timeout", err, "DeadlineExceeded")
	if alive := n.machine.Alive(id); alive != 1 {
		t.Errorf("%d processes after a timeout, want only the container's", alive)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = exec(ctx, 0, "sleep", "for-ever")
	wantCode(t, "caller that leaves", err, "DeadlineExceeded")
	// The executor did not answer in time: not the command.
	n.machine.Fail(wire.MethodExec, fmt.Errorf("executor: %w", context.DeadlineExceeded))
	_, err = exec(t.Context(), 60, "exit", "0")
	wantCode(t, "our own limit", err, "Aborted")
	n.machine.Fail(wire.MethodExec, nil)
	_, err = n.ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: id})
	wantCode(t, "no command", err, "InvalidArgument")
	if _, err := n.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	_, err = exec(t.Context(), 0, "exit", "0")
	wantCode(t, "container that has exited", err, "FailedPrecondition")
}

// A command that is killed while it prints gives its memory back as well.
func TestKilledCommandGivesItsOutputBack(t *testing.T) {
	n := newNode(t)
	id := n.begin(t, n.run(t, pod("a")), forever("x"))
	line := strings.Repeat("x", 100<<10)
	script := []string{"testbin"}
	for range 10 {
		script = append(script, "print", line)
	}
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := n.server.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: id, Cmd: append(script, "sleep", "for-ever")})
		ended <- err
	}()
	for n.server.outputs.used.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if used := n.server.outputs.used.Load(); used != 0 {
		t.Errorf("%d bytes are still reserved", used)
	}
}

// The longer stream is truncated to fit the message limit.
func TestFit(t *testing.T) {
	for _, c := range []struct{ out, err, wantOut, wantErr int }{
		{1, 2, 1, 2},
		{maxAnswer, 0, maxAnswer, 0},
		{maxOutput, 10, maxAnswer - 10, 10},
		{10, maxOutput, 10, maxAnswer - 10},
		{maxOutput, maxOutput, maxAnswer / 2, maxAnswer / 2},
	} {
		if out, err := fit(c.out, c.err); out != c.wantOut || err != c.wantErr {
			t.Errorf("%d and %d became %d and %d, want %d and %d", c.out, c.err, out, err, c.wantOut, c.wantErr)
		}
	}
}

func TestCappedKeepsTheBeginning(t *testing.T) {
	c := capped{all: new(outputMemory)}
	for i := range 3 {
		if n, err := c.Write(bytes.Repeat([]byte{'a' + byte(i)}, maxOutput/2+1)); n != maxOutput/2+1 || err != nil {
			t.Fatalf("write: %d, %v", n, err)
		}
	}
	want := append(bytes.Repeat([]byte{'a'}, maxOutput/2+1), bytes.Repeat([]byte{'b'}, maxOutput/2-1)...)
	if got := c.take(c.kept); !bytes.Equal(got, want) || c.denied > 0 {
		t.Errorf("kept %d bytes, want the first %d; %d were denied", len(got), maxOutput, c.denied)
	}
}

// Pods decide what their probes print and how many of them run at once, not how much memory that
// takes. Each still keeps more than the kubelet reads of a probe.
func TestOutputsOfAllCommandsShareABound(t *testing.T) {
	var all outputMemory
	calls := make([][2]capped, 40)
	block := make([]byte, 32<<10)
	for i := range calls {
		calls[i] = [2]capped{{all: &all}, {all: &all}}
	}
	for range 30 << 20 / len(block) {
		for i := range calls {
			calls[i][0].Write(block)
			calls[i][1].Write(block)
		}
	}
	kept, least := 0, maxOutput
	for i := range calls {
		for j := range calls[i] {
			least = min(least, calls[i][j].kept)
			for _, chunk := range calls[i][j].chunks {
				kept += cap(chunk)
			}
		}
	}
	if most := maxOutputs + 2*len(calls)*freeOutput; kept > most || least < freeOutput {
		t.Errorf("%d calls hold %d bytes, want at most %d; the least of a stream is %d, want %d", len(calls), kept, most, least, freeOutput)
	}
	for i := range calls {
		if calls[i][0].denied == 0 {
			t.Errorf("call %d does not know that output was dropped", i)
		}
		all.release(&calls[i][0], &calls[i][1])
	}
	if used := all.used.Load(); used != 0 {
		t.Errorf("%d bytes are still reserved", used)
	}
	// What was given back is there for the next.
	next := capped{all: &all}
	for next.kept < maxOutput && next.denied == 0 {
		next.Write(block)
	}
	if next.kept != maxOutput {
		t.Errorf("the next command keeps %d bytes, want %d", next.kept, maxOutput)
	}
}

// dial connects to a URL that Exec or Attach has returned.
func dial(t *testing.T, at string, o remotecommand.StreamOptions) error {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	e, err := remotecommand.NewSPDYExecutor(&rest.Config{}, "POST", u)
	if err != nil {
		t.Fatal(err)
	}
	return e.StreamWithContext(t.Context(), o)
}

func TestExecThroughItsURL(t *testing.T) {
	n := newNode(t)
	id := n.begin(t, n.run(t, pod("a")), forever("x"))
	resp, err := n.Exec(t.Context(), &cri.ExecRequest{
		ContainerId: id[:12], Cmd: []string{"testbin", "print", "hello", "echo-stdin", "exit", "5"}, Stdin: true, Stdout: true, Stderr: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = dial(t, resp.Url, remotecommand.StreamOptions{Stdin: strings.NewReader("typed\n"), Stdout: &out, Stderr: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "exit code 5") || out.String() != "hello\ntyped\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
	for name, req := range map[string]*cri.ExecRequest{
		"no command":          {ContainerId: id, Stdout: true},
		"no stream":           {ContainerId: id, Cmd: []string{"ls"}},
		"stderr and terminal": {ContainerId: id, Cmd: []string{"ls"}, Tty: true, Stdout: true, Stderr: true},
	} {
		_, err := n.Exec(t.Context(), req)
		wantCode(t, name, err, "InvalidArgument")
	}
}

// oneSize is a terminal whose size does not change.
type oneSize chan remotecommand.TerminalSize

func (s oneSize) Next() *remotecommand.TerminalSize {
	if size, ok := <-s; ok {
		return &size
	}
	return nil
}

// A program that queries the size of its terminal only once, when it starts, gets the client's
// size.
func TestExecBeginsWithTheClientsTerminal(t *testing.T) {
	defer func(d time.Duration) { sizeTime = d }(sizeTime)
	sizeTime = time.Minute
	n := newNode(t)
	id := n.begin(t, n.run(t, pod("a")), forever("x"))
	resp, err := n.Exec(t.Context(), &cri.ExecRequest{
		ContainerId: id, Cmd: []string{"testbin", "print", "hello"}, Tty: true, Stdin: true, Stdout: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	size := make(oneSize, 1)
	size <- remotecommand.TerminalSize{Width: 132, Height: 43}
	defer close(size)
	in, stop := io.Pipe()
	defer stop.Close()
	err = dial(t, resp.Url, remotecommand.StreamOptions{Stdin: in, Stdout: io.Discard, Tty: true, TerminalSizeQueue: size})
	if err != nil {
		t.Error(err)
	}
	if got, want := n.machine.Terminals(), [][2]uint16{{132, 43}}; !slices.Equal(got, want) {
		t.Errorf("commands were started with terminals of %v, want %v", got, want)
	}
}

// A client that sends no size does not prevent its command from running.
func TestFirstSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sizes := make(chan streaming.Size)
		for name, st := range map[string]streaming.Streams{
			"no terminal":  {Resize: sizes},
			"no sizes":     {TTY: true},
			"none in time": {TTY: true, Resize: sizes},
		} {
			if got := firstSize(st); got != (streaming.Size{}) {
				t.Errorf("%s: %v", name, got)
			}
		}
		close(sizes)
		if got := firstSize(streaming.Streams{TTY: true, Resize: sizes}); got != (streaming.Size{}) {
			t.Errorf("no more sizes: %v", got)
		}
	})
}

func TestAttachThroughItsURL(t *testing.T) {
	n := newNode(t)
	config := container("x", "echo-stdin", "print", "end")
	config.Stdin, config.StdinOnce = true, true
	id := n.begin(t, n.run(t, pod("a")), config)
	_, err := n.Attach(t.Context(), &cri.AttachRequest{ContainerId: id, Stdout: true, Tty: true})
	wantCode(t, "terminal that is none", err, "InvalidArgument")
	resp, err := n.Attach(t.Context(), &cri.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := dial(t, resp.Url, remotecommand.StreamOptions{Stdin: strings.NewReader("typed\n"), Stdout: &out, Stderr: io.Discard}); err != nil {
		t.Errorf("attach: %v", err)
	}
	if out.String() != "typed\nend\n" {
		t.Errorf("got %q", out.String())
	}
}

// attached attaches with a stdin that the test writes. ended receives the result.
func (n *node) attached(t *testing.T, id string, out io.Writer) (stdin *io.PipeWriter, ended <-chan error) {
	t.Helper()
	resp, err := n.Attach(t.Context(), &cri.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		t.Fatal(err)
	}
	in, stdin := io.Pipe()
	t.Cleanup(func() { stdin.Close() })
	result := make(chan error, 1)
	go func() {
		result <- dial(t, resp.Url, remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: io.Discard})
	}()
	return stdin, result
}

// `kubectl run -i` while crispd is stopped, for example for an upgrade: the client is disconnected
// without having closed its input, so the container's stdin stays open for the next client to
// close.
func TestStopLeavesTheInputOfWhoIsAttached(t *testing.T) {
	n := newNode(t)
	config := container("x", "echo-stdin", "print", "end")
	config.Stdin, config.StdinOnce = true, true
	id := n.begin(t, n.run(t, pod("a")), config)
	heard, out := io.Pipe()
	stdin, ended := n.attached(t, id, out)
	if _, err := io.WriteString(stdin, "first\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(heard).ReadString('\n'); line != "first\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	go io.Copy(io.Discard, heard)
	n.restart(t)
	<-ended
	if st := n.status(t, id); st.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Fatalf("crispd was stopped, and the container is %v", st.State)
	}
	var second bytes.Buffer
	stdin, ended = n.attached(t, id, &second)
	if _, err := io.WriteString(stdin, "second\n"); err != nil {
		t.Fatal(err)
	}
	stdin.Close()
	if err := <-ended; err != nil {
		t.Errorf("attach to the next crispd: %v", err)
	}
	if second.String() != "second\nend\n" {
		t.Errorf("the next client got %q", second.String())
	}
}

// `echo x | kubectl attach -i`: where the container's stdin outlives clients, one that has sent all
// its input is done, for the container will not end because of it.
func TestAttachEndsWithItsInput(t *testing.T) {
	n := newNode(t)
	config := container("x", "echo-stdin")
	config.Stdin = true
	id := n.begin(t, n.run(t, pod("a")), config)
	heard, out := io.Pipe()
	lines := bufio.NewReader(heard)
	watch, watching := n.attached(t, id, out)
	say := func(stdin io.Writer, text string) {
		t.Helper()
		if _, err := io.WriteString(stdin, text); err != nil {
			t.Fatal(err)
		}
		if line, err := lines.ReadString('\n'); line != text {
			t.Fatalf("the container got %q, %v", line, err)
		}
	}
	say(watch, "first\n") // it is attached
	stdin, ended := n.attached(t, id, io.Discard)
	say(stdin, "second\n")
	stdin.Close()
	if err := <-ended; err != nil {
		t.Errorf("attach: %v", err)
	}
	go io.Copy(io.Discard, heard)
	watch.Close()
	<-watching
	if st := n.status(t, id); st.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container is %v", st.State)
	}
}

// A client that the executor has dropped for not reading gets an error, as the container has
// not ended.
func TestAttachReportsDroppedClients(t *testing.T) {
	t.Parallel() // it waits for the time in which a client must read
	n := newNode(t)
	config := container("x", "echo-stdin")
	config.Stdin = true
	id := n.begin(t, n.run(t, pod("a")), config)
	heard, out := io.Pipe()
	stdin, ended := n.attached(t, id, out)
	if _, err := io.WriteString(stdin, "first\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(heard).ReadString('\n'); line != "first\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	go io.Copy(io.Discard, heard)
	n.machine.Detach(id)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "detached from container "+id) {
		t.Errorf("the client gets %v", err)
	}
	if st := n.status(t, id); st.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container is %v", st.State)
	}
}

// The kubelet watches the status for the end of a resize, and the resize must survive a restart.
func TestUpdateContainerResources(t *testing.T) {
	n := newNode(t)
	id := n.begin(t, n.run(t, pod("a")), forever("x"))
	update := func(r *cri.LinuxContainerResources) error {
		_, err := n.UpdateContainerResources(t.Context(), &cri.UpdateContainerResourcesRequest{ContainerId: id, Linux: r})
		return err
	}
	if err := update(&cri.LinuxContainerResources{CpuQuota: 50_000, CpuPeriod: 100_000, MemoryLimitInBytes: 128 << 20}); err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		r := n.status(t, id).Resources.Linux
		if r.CpuQuota != 50_000 || r.CpuShares != 512 || r.MemoryLimitInBytes != 128<<20 || r.OomScoreAdj != 500 {
			t.Errorf("%s: %v", when, r)
		}
	}
	check("after the update")
	n.machine.Fail("update", fmt.Errorf("kernel said no"))
	if err := update(&cri.LinuxContainerResources{CpuQuota: 70_000}); err == nil {
		t.Error("an update that failed was reported as done")
	}
	n.machine.Fail("update", nil)
	check("after a failed update")
	n.restart(t)
	check("after a restart")
	wantCode(t, "nothing to update", update(nil), "InvalidArgument")
	if _, err := n.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "container that has exited", update(&cri.LinuxContainerResources{CpuQuota: 60_000}), "FailedPrecondition")
}

// A missing program is an error of StartContainer, and stays in the status for the kubelet to show.
func TestStartError(t *testing.T) {
	n := newNode(t)
	config := forever("x")
	config.Command = []string{"missing-program"}
	id := n.create(t, n.run(t, pod("a")), config)
	if _, err := n.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: id}); err == nil {
		t.Error("a program that is not there was started")
	}
	st := n.status(t, id)
	if st.State != cri.ContainerState_CONTAINER_EXITED || st.ExitCode != 128 || st.Reason != "StartError" || st.Message == "" || st.StartedAt == 0 || st.FinishedAt < st.StartedAt {
		t.Errorf("status is %v", st)
	}
	_, err := n.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: id})
	wantCode(t, "second start", err, "FailedPrecondition")
}

// A size that cannot be set, for instance while the executor is replaced, must not stop the sizes
// that follow: unread sizes block the client's input.
func TestSizeThatCannotBeSet(t *testing.T) {
	sizes := make(chan streaming.Size, 2)
	sizes <- streaming.Size{Width: 80, Height: 24}
	sizes <- streaming.Size{Width: 132, Height: 43}
	close(sizes)
	var tried []uint16
	followSize(sizes, func(w, _ uint16) error {
		tried = append(tried, w)
		return fault.Unavailable.Errorf("the executor is being replaced")
	})
	if want := []uint16{80, 132}; !slices.Equal(tried, want) {
		t.Errorf("widths %d were tried, want %d", tried, want)
	}
}

// Clients of the first two versions of the protocol send no sizes: nothing waits for them.
func TestFollowNoSizes(t *testing.T) {
	synctest.Test(t, func(*testing.T) { // which fails if it blocks for ever
		followSize(nil, nil)
	})
}
