package page

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/websocket"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/poke"
)

// defaultShell is the command if the request has none.
const defaultShell = "/bin/sh"

const (
	maxCommand = 1024      // bytes
	maxMessage = 64 << 10  // bytes, from the browser
	maxTyped   = 256       // messages that the command has not read; further ones are dropped, as by a terminal
	maxUnread  = 256 << 10 // bytes of output that the browser has not shown
	maxSide    = 1000      // columns or rows

	shownPatience = time.Hour // for a browser that shows no output, as of a machine that sleeps
)

func (s *Server) shell(w http.ResponseWriter, r *http.Request) error {
	t := targetOf(r)
	t.Command = cmp.Or(t.Command, defaultShell)
	s.show(w, r, http.StatusOK, "shell", view{Title: "Shell in " + t.Name, Body: t})
	return nil
}

// exec runs a command in a container, for a terminal emulator in the browser. The browser sends what
// is typed, and how much output it has shown. The command waits, as at any terminal, while
// maxUnread bytes are not.
func (s *Server) exec(w http.ResponseWriter, r *http.Request) error {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return fault.Invalid.Errorf("want a WebSocket")
	}
	t := targetOf(r)
	command := strings.Fields(t.Command)
	if len(command) == 0 || len(t.Command) > maxCommand {
		return fault.Invalid.Errorf("command: want words, at most %d bytes", maxCommand)
	}
	release, err := take(s.shells, "shells")
	if err != nil {
		return err
	}
	defer release()
	stream, err := s.startExec(r, t, command)
	if err != nil {
		return err
	}
	(&websocket.Server{Handler: func(ws *websocket.Conn) {
		ws.MaxPayloadBytes = maxMessage
		newSession(ws).run(r.Context(), stream)
	}}).ServeHTTP(w, r)
	return nil
}

// startExec requests the streams of a command from the runtime.
func (s *Server) startExec(r *http.Request, t target, command []string) (remotecommand.Executor, error) {
	var pod v1.Pod
	if err := s.ask(r.Context(), podPath("/api/v1", r), &pod); err != nil {
		return nil, err
	}
	c := podsync.StatusOf(t.Container, pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses)
	if c == nil || c.State.Running == nil {
		return nil, fault.NotFound.Errorf("container %s of pod %s/%s does not run", t.Container, t.Namespace, t.Name)
	}
	runtime, _, err := s.o.Runtime.Runtime()
	if err != nil {
		return nil, err
	}
	resp, err := runtime.Exec(r.Context(), &cri.ExecRequest{ContainerId: podsync.RuntimeID(c.ContainerID), Cmd: command, Tty: true, Stdin: true, Stdout: true})
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(resp.Url)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewSPDYExecutor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, "POST", u)
}

// A session is the terminal of one shell.
type session struct {
	ws    *websocket.Conn
	typed chan []byte
	left  []byte // rest of the last message
	sizes chan remotecommand.TerminalSize
	done  chan struct{} // closed when the browser has disconnected

	unread atomic.Int64  // bytes of output that the browser has not shown
	shown  chan struct{} // woken when unread falls
}

func newSession(ws *websocket.Conn) *session {
	return &session{
		ws: ws, typed: make(chan []byte, maxTyped), sizes: make(chan remotecommand.TerminalSize, 1), done: make(chan struct{}),
		shown: make(chan struct{}, 1),
	}
}

// run returns when the command has ended or the browser has disconnected.
func (s *session) run(ctx context.Context, stream remotecommand.Executor) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		s.receive()
	}()
	err := stream.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: s, Stdout: &cleaner{to: s, terminal: true}, Tty: true, TerminalSizeQueue: s})
	text := "The command has ended."
	if err != nil {
		text = "The command has ended: " + string(visible([]byte(err.Error())))
	}
	s.send(text) // fails if the browser has disconnected
}

// send sends output ([]byte) or a message about the command (string).
func (s *session) send(v any) error {
	if err := s.ws.SetWriteDeadline(time.Now().Add(writePatience)); err != nil {
		return err
	}
	return websocket.Message.Send(s.ws, v)
}

// A message is a message from the browser. Any of its fields may be set.
type message struct {
	Text string
	Size []int // columns, rows
	Read int64 // bytes of output
}

// receive handles messages until the connection ends.
func (s *session) receive() {
	defer close(s.done)
	for {
		var m message
		if err := websocket.JSON.Receive(s.ws, &m); err != nil {
			return
		}
		if len(m.Size) == 2 {
			select {
			case <-s.sizes: // replace an older size that was not read
			default:
			}
			s.sizes <- remotecommand.TerminalSize{Width: side(m.Size[0]), Height: side(m.Size[1])}
		}
		if m.Text != "" {
			select {
			case s.typed <- []byte(m.Text):
			default:
			}
		}
		s.unread.Add(-m.Read)
		poke.Wake(s.shown)
	}
}

func side(cells int) uint16 { return uint16(min(max(cells, 1), maxSide)) }

// Next implements remotecommand.TerminalSizeQueue.
func (s *session) Next() *remotecommand.TerminalSize {
	select {
	case size := <-s.sizes:
		return &size
	case <-s.done:
		return nil
	}
}

// Read implements io.Reader for the command's standard input.
func (s *session) Read(p []byte) (int, error) {
	if len(s.left) == 0 {
		select {
		case s.left = <-s.typed:
		case <-s.done:
			return 0, context.Canceled
		}
	}
	n := copy(p, s.left)
	s.left = s.left[n:]
	return n, nil
}

// Write implements io.Writer for the command's output. If it fails, the connection ends.
func (s *session) Write(p []byte) (int, error) {
	for s.unread.Load() >= maxUnread {
		select {
		case <-s.shown:
		case <-time.After(shownPatience):
			s.ws.Close()
			return 0, context.DeadlineExceeded
		case <-s.done:
			return 0, context.Canceled
		}
	}
	s.unread.Add(int64(len(p)))
	if err := s.send(p); err != nil {
		s.ws.Close()
		return 0, err
	}
	return len(p), nil
}
