package page

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/websocket"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/apiserver/page/terminal"
	"github.com/crisp-cri/crisp/internal/fault"
)

// defaultShell is the command if the request has none.
const defaultShell = "/bin/sh"

const (
	maxCommand = 1024     // bytes
	maxMessage = 64 << 10 // bytes, from the browser
	maxTyped   = 256      // messages that the command has not read; further ones are dropped, as by a terminal
	frameEvery = 40 * time.Millisecond
)

func (s *Server) shell(w http.ResponseWriter, r *http.Request) error {
	t := targetOf(r)
	t.Command = cmp.Or(t.Command, defaultShell)
	s.show(w, r, http.StatusOK, "shell", view{Title: "Shell in " + t.Name, Body: t})
	return nil
}

// exec runs a command in a container. The agent emulates its terminal: the browser sends keys and
// receives frames of the screen, each only after it has received the previous one. The command
// never waits for the browser.
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

	mu     sync.Mutex
	screen *terminal.Terminal // guarded by mu
}

func newSession(ws *websocket.Conn) *session {
	return &session{
		ws: ws, typed: make(chan []byte, maxTyped), sizes: make(chan remotecommand.TerminalSize, 1), done: make(chan struct{}),
		screen: terminal.New(80, 24),
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
	ended := make(chan string, 1)
	go func() {
		err := stream.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: s, Stdout: screenWriter{s}, Tty: true, TerminalSizeQueue: s})
		text := "The command has ended."
		if err != nil {
			text = "The command has ended: " + string(visible([]byte(err.Error())))
		}
		ended <- text
	}()
	tick := time.NewTicker(frameEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if s.sendFrame() != nil {
				return
			}
		case text := <-ended:
			if s.sendFrame() == nil {
				s.send(map[string]string{"end": text})
			}
			return
		case <-ctx.Done():
			return
		}
	}
}

func (s *session) sendFrame() error {
	s.mu.Lock()
	if !s.screen.Changed() {
		s.mu.Unlock()
		return nil
	}
	frame := s.screen.Frame()
	s.mu.Unlock()
	return s.send(frame)
}

func (s *session) send(v any) error {
	if err := s.ws.SetWriteDeadline(time.Now().Add(writePatience)); err != nil {
		return err
	}
	return websocket.JSON.Send(s.ws, v)
}

// A message is a message from the browser. Any of its fields may be set.
type message struct {
	Text, Key, Paste string
	Size             []int // columns, rows
}

// receive handles messages until the connection ends.
func (s *session) receive() {
	defer close(s.done)
	for {
		var m message
		if err := websocket.JSON.Receive(s.ws, &m); err != nil {
			return
		}
		s.mu.Lock()
		text := m.Text + s.screen.Key(m.Key)
		if m.Paste != "" {
			text += s.screen.Paste(m.Paste)
		}
		if len(m.Size) == 2 {
			s.screen.Resize(m.Size[0], m.Size[1])
		}
		columns, rows := s.screen.Size()
		s.mu.Unlock()
		if len(m.Size) == 2 {
			select {
			case <-s.sizes: // replace an older size that was not read
			default:
			}
			s.sizes <- remotecommand.TerminalSize{Width: uint16(columns), Height: uint16(rows)}
		}
		if text != "" {
			select {
			case s.typed <- []byte(text):
			default:
			}
		}
	}
}

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

// A screenWriter is the command's standard output.
type screenWriter struct{ s *session }

func (w screenWriter) Write(p []byte) (int, error) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	return w.s.screen.Write(p)
}
