package streaming

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	utilexec "k8s.io/utils/exec"

	"github.com/crisp-cri/crisp/internal/fault"
)

// fake is a Runtime made of functions.
type fake struct {
	exec    func(ctx context.Context, container string, cmd []string, s Streams) (int32, error)
	attach  func(ctx context.Context, container string, s Streams) error
	forward func(ctx context.Context, sandbox string, port int32, rw io.ReadWriteCloser) error
}

func (f fake) ExecStream(ctx context.Context, container string, cmd []string, s Streams) (int32, error) {
	return f.exec(ctx, container, cmd, s)
}
func (f fake) AttachStream(ctx context.Context, container string, s Streams) error {
	return f.attach(ctx, container, s)
}
func (f fake) ForwardStream(ctx context.Context, sandbox string, port int32, rw io.ReadWriteCloser) error {
	return f.forward(ctx, sandbox, port, rw)
}

func start(t *testing.T, f fake) *Server {
	t.Helper()
	s, err := New(Options{}, f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// transports are the two ways in which clients connect.
var transports = map[string]func(t *testing.T, u string) remotecommand.Executor{
	"spdy": func(t *testing.T, u string) remotecommand.Executor {
		parsed, err := url.Parse(u)
		if err != nil {
			t.Fatal(err)
		}
		e, err := remotecommand.NewSPDYExecutor(&rest.Config{}, "POST", parsed)
		if err != nil {
			t.Fatal(err)
		}
		return e
	},
	"websocket": func(t *testing.T, u string) remotecommand.Executor {
		e, err := remotecommand.NewWebSocketExecutor(&rest.Config{}, "GET", u)
		if err != nil {
			t.Fatal(err)
		}
		return e
	},
}

func overBoth(t *testing.T, test func(t *testing.T, connect func(*testing.T, string) remotecommand.Executor)) {
	for name, connect := range transports {
		t.Run(name, func(t *testing.T) { test(t, connect) })
	}
}

// The command sees the end of stdin, both outputs arrive complete and separate,
// and the client gets the exit code.
func TestExec(t *testing.T) {
	overBoth(t, func(t *testing.T, connect func(*testing.T, string) remotecommand.Executor) {
		s := start(t, fake{exec: func(_ context.Context, container string, cmd []string, st Streams) (int32, error) {
			if container != "c1" || strings.Join(cmd, " ") != "tr a b" {
				t.Errorf("exec of %q in %q", cmd, container)
			}
			in, err := io.ReadAll(st.Stdin)
			if err != nil {
				t.Errorf("read stdin: %v", err)
			}
			st.Stdout.Write(bytes.ToUpper(in))
			st.Stderr.Write([]byte("to err"))
			return 7, nil
		}})
		resp, err := s.Exec(&cri.ExecRequest{ContainerId: "c1", Cmd: []string{"tr", "a", "b"}, Stdin: true, Stdout: true, Stderr: true})
		if err != nil {
			t.Fatal(err)
		}
		input := strings.Repeat("hello ", 100_000)
		var out, errOut bytes.Buffer
		err = connect(t, resp.Url).StreamWithContext(t.Context(), remotecommand.StreamOptions{
			Stdin: strings.NewReader(input), Stdout: &out, Stderr: &errOut,
		})
		var exit utilexec.ExitError
		if !errors.As(err, &exit) || exit.ExitStatus() != 7 {
			t.Errorf("client got %v, want exit code 7", err)
		}
		if out.String() != strings.ToUpper(input) {
			t.Errorf("stdout has %d bytes, want %d", out.Len(), len(input))
		}
		if errOut.String() != "to err" {
			t.Errorf("stderr is %q", errOut.String())
		}
	})
}

func TestExecWithoutStdinThatSucceeds(t *testing.T) {
	overBoth(t, func(t *testing.T, connect func(*testing.T, string) remotecommand.Executor) {
		s := start(t, fake{exec: func(_ context.Context, _ string, _ []string, st Streams) (int32, error) {
			if st.Stdin != nil || st.Stderr != nil {
				t.Error("got streams that were not asked for")
			}
			st.Stdout.Write([]byte("out"))
			return 0, nil
		}})
		resp, err := s.Exec(&cri.ExecRequest{ContainerId: "c1", Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := connect(t, resp.Url).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out}); err != nil {
			t.Errorf("client got %v, want success", err)
		}
		if out.String() != "out" {
			t.Errorf("stdout is %q", out.String())
		}
	})
}

func TestExecThatCannotStart(t *testing.T) {
	overBoth(t, func(t *testing.T, connect func(*testing.T, string) remotecommand.Executor) {
		s := start(t, fake{exec: func(context.Context, string, []string, Streams) (int32, error) {
			return 0, fault.WrongState.Errorf("container c1 is exited")
		}})
		resp, err := s.Exec(&cri.ExecRequest{ContainerId: "c1", Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		err = connect(t, resp.Url).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
		if err == nil || !strings.Contains(err.Error(), "container c1 is exited") {
			t.Errorf("client got %v, want the reason", err)
		}
	})
}

type sizeQueue chan remotecommand.TerminalSize

func (q sizeQueue) Next() *remotecommand.TerminalSize {
	size, ok := <-q
	if !ok {
		return nil
	}
	return &size
}

func TestTerminalSizes(t *testing.T) {
	overBoth(t, func(t *testing.T, connect func(*testing.T, string) remotecommand.Executor) {
		s := start(t, fake{exec: func(_ context.Context, _ string, _ []string, st Streams) (int32, error) {
			if !st.TTY || st.Stderr != nil {
				t.Error("want a terminal and no stderr")
			}
			for range 2 {
				size := <-st.Resize
				fmt.Fprintf(st.Stdout, "%dx%d ", size.Width, size.Height)
			}
			return 0, nil
		}})
		resp, err := s.Exec(&cri.ExecRequest{ContainerId: "c1", Stdin: true, Stdout: true, Tty: true})
		if err != nil {
			t.Fatal(err)
		}
		sizes := make(sizeQueue, 2)
		sizes <- remotecommand.TerminalSize{Width: 80, Height: 24}
		sizes <- remotecommand.TerminalSize{Width: 132, Height: 43}
		defer close(sizes)
		in, closeIn := io.Pipe()
		defer closeIn.Close()
		var out bytes.Buffer
		err = connect(t, resp.Url).StreamWithContext(t.Context(), remotecommand.StreamOptions{
			Stdin: in, Stdout: &out, Tty: true, TerminalSizeQueue: sizes,
		})
		if err != nil || out.String() != "80x24 132x43 " {
			t.Errorf("got %q, %v", out.String(), err)
		}
	})
}

// Input that a command does not read blocks neither changes of the terminal's size nor the
// detection that the client has left.
func TestInputThatIsNotRead(t *testing.T) {
	overBoth(t, func(t *testing.T, connect func(*testing.T, string) remotecommand.Executor) {
		resized, ended := make(chan Size, 1), make(chan struct{})
		s := start(t, fake{exec: func(ctx context.Context, _ string, _ []string, st Streams) (int32, error) {
			defer close(ended)
			select {
			case size := <-st.Resize:
				resized <- size
			case <-time.After(20 * time.Second):
				close(resized)
			}
			<-ctx.Done()
			return 0, ctx.Err()
		}})
		resp, err := s.Exec(&cri.ExecRequest{ContainerId: "c1", Stdin: true, Stdout: true, Tty: true})
		if err != nil {
			t.Fatal(err)
		}
		in, input := io.Pipe()
		defer input.Close()
		sizes := make(sizeQueue, 1)
		defer close(sizes)
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			left <- connect(t, resp.Url).StreamWithContext(ctx, remotecommand.StreamOptions{
				Stdin: in, Stdout: io.Discard, Tty: true, TerminalSizeQueue: sizes,
			})
		}()
		input.Write(make([]byte, maxAhead))
		sizes <- remotecommand.TerminalSize{Width: 80, Height: 24}
		if got := <-resized; got != (Size{Width: 80, Height: 24}) {
			t.Errorf("the command was told the size %v", got)
		}
		leave()
		<-left
		<-ended
	})
}

// A command that is silent and reads nothing must not outlive its client: otherwise every probe of
// an impatient client would leave a process behind.
func TestClientThatLeavesEndsTheCommand(t *testing.T) {
	overBoth(t, func(t *testing.T, connect func(*testing.T, string) remotecommand.Executor) {
		running, ended := make(chan struct{}), make(chan struct{})
		s := start(t, fake{exec: func(ctx context.Context, _ string, _ []string, _ Streams) (int32, error) {
			close(running)
			<-ctx.Done()
			close(ended)
			return 0, ctx.Err()
		}})
		resp, err := s.Exec(&cri.ExecRequest{ContainerId: "c1", Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			left <- connect(t, resp.Url).StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: io.Discard})
		}()
		<-running
		leave()
		<-left
		<-ended
	})
}

func TestCloseEndsTheCommands(t *testing.T) {
	overBoth(t, func(t *testing.T, connect func(*testing.T, string) remotecommand.Executor) {
		running, ended := make(chan struct{}), make(chan struct{})
		s, err := New(Options{}, fake{attach: func(ctx context.Context, _ string, _ Streams) error {
			close(running)
			<-ctx.Done()
			close(ended)
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := s.Attach(&cri.AttachRequest{ContainerId: "c1", Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		left := make(chan error, 1)
		go func() {
			left <- connect(t, resp.Url).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
		}()
		<-running
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		<-ended
		<-left
	})
}

func TestPortForward(t *testing.T) {
	for name, dialer := range forwarders {
		t.Run(name, func(t *testing.T) {
			s := start(t, fake{forward: func(_ context.Context, sandbox string, port int32, rw io.ReadWriteCloser) error {
				in, err := io.ReadAll(rw)
				if err != nil {
					t.Errorf("read from the client: %v", err)
				}
				fmt.Fprintf(rw, "%s:%d got %d bytes", sandbox, port, len(in))
				return rw.Close()
			}})
			addr := forwardPort(t, s, dialer)
			// Two connections of one session, each with a half close.
			for range 2 {
				c := connect(t, addr)
				c.Write(make([]byte, 300_000))
				c.(*net.TCPConn).CloseWrite()
				answer, err := io.ReadAll(c)
				if err != nil || string(answer) != "sb:8080 got 300000 bytes" {
					t.Errorf("answer is %q, %v", answer, err)
				}
			}
		})
	}
}

// A client that is gone leaves no connection to a program behind, though the program neither reads
// nor answers.
func TestClientThatLeavesEndsItsForwards(t *testing.T) {
	for name, dialer := range forwarders {
		t.Run(name, func(t *testing.T) {
			began, ended := make(chan struct{}), make(chan struct{})
			s := start(t, fake{forward: func(ctx context.Context, _ string, _ int32, _ io.ReadWriteCloser) error {
				close(began)
				<-ctx.Done()
				close(ended)
				return nil
			}})
			t.Run("client", func(t *testing.T) { // it leaves at the end
				connect(t, forwardPort(t, s, dialer))
				<-began
			})
			<-ended
		})
	}
}

// A URL is valid once, and only for its kind of stream.
func TestToken(t *testing.T) {
	s := start(t, fake{exec: func(context.Context, string, []string, Streams) (int32, error) { return 0, nil }})
	resp, err := s.Exec(&cri.ExecRequest{ContainerId: "c1", Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	get := func(u string) int {
		r, err := http.Get(u)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		return r.StatusCode
	}
	if got := get(strings.Replace(resp.Url, "/exec/", "/attach/", 1)); got != http.StatusNotFound {
		t.Errorf("an exec token at attach: %d, want 404", got)
	}
	if err := transports["spdy"](t, resp.Url).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard}); err != nil {
		t.Errorf("first use: %v", err)
	}
	if got := get(resp.Url); got != http.StatusNotFound {
		t.Errorf("second use: %d, want 404", got)
	}
}

func TestRequestsThatMakeNoSense(t *testing.T) {
	s := start(t, fake{})
	if _, err := s.Exec(&cri.ExecRequest{ContainerId: "c1", Stdout: true, Stderr: true, Tty: true}); !errors.Is(err, fault.Invalid) {
		t.Errorf("stderr with a terminal: %v, want fault.Invalid", err)
	}
	if _, err := s.Attach(&cri.AttachRequest{ContainerId: "c1"}); !errors.Is(err, fault.Invalid) {
		t.Errorf("no stream at all: %v, want fault.Invalid", err)
	}
}

func TestTooManyWaitingStreams(t *testing.T) {
	s := start(t, fake{})
	var err error
	for range maxTokens + 1 {
		_, err = s.Exec(&cri.ExecRequest{ContainerId: "c1", Stdout: true})
	}
	if !errors.Is(err, fault.Unavailable) {
		t.Errorf("request %d: %v, want fault.Unavailable", maxTokens+1, err)
	}
}

// A wildcard is a fine address to listen at, but clients cannot connect to it everywhere, nor to ::1:
// IPv6 may be disabled.
func TestURLsOfAWildcardLeadToThisNode(t *testing.T) {
	s, err := New(Options{Addr: "0.0.0.0:0", Log: slog.New(slog.DiscardHandler)}, fake{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	resp, err := s.Exec(&cri.ExecRequest{ContainerId: "c1", Stdout: true})
	if err != nil || !strings.HasPrefix(resp.Url, "http://127.0.0.1:") {
		t.Errorf("a server at 0.0.0.0:0 answers %v, %v; want a URL at 127.0.0.1", resp, err)
	}
	for listen, want := range map[string]string{"0.0.0.0:7": "127.0.0.1:7", "[::]:7": "127.0.0.1:7", "[::1]:7": "[::1]:7", "10.1.2.3:7": "10.1.2.3:7"} {
		if got := reachable(net.TCPAddrFromAddrPort(netip.MustParseAddrPort(listen)), slog.New(slog.DiscardHandler)); got != want {
			t.Errorf("%s has URLs at %s, want %s", listen, got, want)
		}
	}
}
