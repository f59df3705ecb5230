package streaming

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"
	utilexec "k8s.io/utils/exec"

	"github.com/crisp-cri/crisp/internal/fault"
)

// Exec returns the URL at which req will be served, once. req.ContainerId is passed to the
// Runtime unchanged.
func (s *Server) Exec(req *cri.ExecRequest) (*cri.ExecResponse, error) {
	o := remotecommand.Options{Stdin: req.Stdin, Stdout: req.Stdout, Stderr: req.Stderr, TTY: req.Tty}
	url, err := s.url("exec", o, func(ctx context.Context, st Streams) (int32, error) {
		return s.runtime.ExecStream(ctx, req.ContainerId, req.Cmd, st)
	}, func(w http.ResponseWriter, r *http.Request, a *adapter) {
		// Over SPDY the library decodes terminal sizes (handleResizeEvents) and buffers each value
		// completely, however long it is. It creates the streams itself, from the connection that
		// it hijacks: only parsing SPDY's frames before it does could bound one.
		remotecommand.ServeExec(w, r, a, "", "", req.ContainerId, req.Cmd, &o,
			s.idle(), creationTimeout, remotecommand.SupportedStreamingProtocols)
	})
	if err != nil {
		return nil, err
	}
	return &cri.ExecResponse{Url: url}, nil
}

// Attach returns the URL at which req will be served, once.
func (s *Server) Attach(req *cri.AttachRequest) (*cri.AttachResponse, error) {
	o := remotecommand.Options{Stdin: req.Stdin, Stdout: req.Stdout, Stderr: req.Stderr, TTY: req.Tty}
	url, err := s.url("attach", o, func(ctx context.Context, st Streams) (int32, error) {
		return 0, s.runtime.AttachStream(ctx, req.ContainerId, st)
	}, func(w http.ResponseWriter, r *http.Request, a *adapter) {
		remotecommand.ServeAttach(w, r, a, "", "", req.ContainerId, &o,
			s.idle(), creationTimeout, remotecommand.SupportedStreamingProtocols)
	})
	if err != nil {
		return nil, err
	}
	return &cri.AttachResponse{Url: url}, nil
}

// url returns a URL at which a command is served over WebSocket by run, and otherwise by the library.
// The request must be as CRI's ExecRequest wants it: "One of `stdin`, `stdout`, and `stderr` MUST be
// true. If `tty` is true, `stderr` MUST be false."
func (s *Server) url(kind string, o remotecommand.Options, run func(context.Context, Streams) (int32, error), spdy func(http.ResponseWriter, *http.Request, *adapter)) (string, error) {
	if o.TTY && o.Stderr {
		return "", fault.Invalid.Errorf("stderr cannot be requested with a terminal: both share one stream")
	}
	if !o.Stdin && !o.Stdout && !o.Stderr {
		return "", fault.Invalid.Errorf("none of stdin, stdout and stderr is requested")
	}
	path, err := s.tokens.add(kind, func(w http.ResponseWriter, r *http.Request) {
		if wsstream.IsWebSocketRequest(r) {
			s.serveWebSocket(w, r, o, run)
			return
		}
		spdy(w, r, &adapter{ctx: r.Context(), runtime: s.runtime, options: o})
	})
	return s.base + path, err
}

// adapter implements cri-streaming's interfaces with our Runtime.
type adapter struct {
	ctx      context.Context // of the connection
	runtime  Runtime
	options  remotecommand.Options // of an exec or attach
	forwards forwards
}

// ExecInContainer runs a command. If the error is a utilexec.ExitError, the library
// sends the client the exit code, as NonZeroExitCode of metav1.Status.
func (a *adapter) ExecInContainer(ctx context.Context, _, _, container string, cmd []string, in io.Reader, out, errw io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	code, err := a.runtime.ExecStream(ctx, container, cmd, streams(ctx, a.options, in, out, errw, resize))
	if err != nil {
		return err
	}
	if code != 0 {
		return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: int(code)}
	}
	return nil
}

// AttachContainer connects to a container.
func (a *adapter) AttachContainer(ctx context.Context, _, _, container string, in io.Reader, out, errw io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return a.runtime.AttachStream(ctx, container, streams(ctx, a.options, in, out, errw, resize))
}

// PortForward forwards one connection. The library's context does not end with the client.
func (a *adapter) PortForward(_ context.Context, sandbox, _ string, port int32, stream io.ReadWriteCloser) error {
	return a.forwards.carry(a.ctx, stream, func(ctx context.Context, rw io.ReadWriteCloser) error {
		return a.runtime.ForwardStream(ctx, sandbox, port, rw)
	})
}

// streams converts the library's streams. Over WebSocket it has all of them, also those that are
// not in o: such an input ends at once.
func streams(ctx context.Context, o remotecommand.Options, in io.Reader, out, errw io.WriteCloser, resize <-chan remotecommand.TerminalSize) Streams {
	s := Streams{TTY: o.TTY}
	if o.Stdin && in != nil {
		ahead := newReadAhead()
		s.Stdin = ahead
		context.AfterFunc(ctx, ahead.drop)
		go ahead.fill(in, func(room <-chan struct{}) bool {
			select {
			case <-room:
				return true
			case <-ctx.Done():
				return false
			}
		})
	}
	if o.Stdout {
		s.Stdout = out
	}
	if o.Stderr {
		s.Stderr = errw
	}
	if o.TTY {
		s.Resize = resize
	} else if resize != nil {
		go func() { // unwanted sizes; unread, they would block the other streams
			for range resize {
			}
		}()
	}
	return s
}
