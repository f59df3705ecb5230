package server

import (
	"context"
	"fmt"
	"io"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/spec"
	"github.com/crisp-cri/crisp/streaming"
)

// Exec returns a URL; connecting to it runs a command in the container.
func (s *Server) Exec(_ context.Context, req *cri.ExecRequest) (*cri.ExecResponse, error) {
	c, err := s.runningContainer(req.ContainerId)
	if err != nil {
		return nil, err
	}
	if len(req.Cmd) == 0 {
		return nil, fault.Invalid.Errorf("exec in container %s names no command", c.ID())
	}
	return s.streaming.Exec(&cri.ExecRequest{
		ContainerId: c.ID(), Cmd: req.Cmd, Tty: req.Tty, Stdin: req.Stdin, Stdout: req.Stdout, Stderr: req.Stderr,
	})
}

func (s *Server) runningContainer(id string) (*oci.Container, error) {
	c, err := s.runtime.Container(id)
	if err != nil {
		return nil, err
	}
	if st := c.Status().State; st != oci.Running && st != oci.Stopping {
		return nil, fault.WrongState.Errorf("container %s is %s", c.ID(), st)
	}
	return c, nil
}

// startExec runs a command with the same settings as the container's own
// process, and the stdio of o.
func (s *Server) startExec(ctx context.Context, id string, cmd []string, o oci.ExecConfig) (*oci.Exec, error) {
	c, err := s.runningContainer(id)
	if err != nil {
		return nil, err
	}
	config := c.Config()
	o.Process, o.Env = spec.ExecProcess(config.Spec.Process, cmd, o.TTY), config.Env
	return c.Exec(ctx, o)
}

// ExecStream runs a command for a streaming client. If ctx ends first, the
// command and all that it started are killed.
func (r streamRuntime) ExecStream(ctx context.Context, container string, cmd []string, st streaming.Streams) (int32, error) {
	size := firstSize(st)
	x, err := r.server.startExec(ctx, container, cmd, oci.ExecConfig{
		Stdin: st.Stdin != nil, TTY: st.TTY, Width: size.Width, Height: size.Height,
	})
	if err != nil {
		return 0, err
	}
	defer x.Close()
	var output outputs
	if st.TTY {
		go followSize(st.Resize, func(w, h uint16) error { return x.Resize(ctx, w, h) })
	}
	if x.PTY != nil {
		if st.Stdin != nil {
			go io.Copy(x.PTY, st.Stdin)
		}
		output.copy(st.Stdout, x.PTY)
	} else {
		if st.Stdin != nil {
			go func() {
				io.Copy(x.Stdin, st.Stdin)
				x.Stdin.Close() // the command sees the end of its input
			}()
		}
		output.copy(st.Stdout, x.Stdout)
		output.copy(st.Stderr, x.Stderr)
	}
	code, err := waitOrKill(ctx, x)
	if err != nil {
		return 0, err
	}
	output.drain()
	return code, nil
}

// waitOrKill returns the exit code of x. If ctx ends first, the whole process
// tree is killed, and the error is ctx's.
func waitOrKill(ctx context.Context, x *oci.Exec) (int32, error) {
	code, err := x.Wait(ctx)
	if ctx.Err() == nil {
		return code, err
	}
	kill, cancel := undo.Context(ctx)
	defer cancel()
	if err := x.Kill(); err != nil {
		return 0, fmt.Errorf("%w; and its command was not killed: %w", ctx.Err(), err)
	}
	if _, err := x.Wait(kill); err != nil {
		return 0, fmt.Errorf("%w; and its command did not end: %w", ctx.Err(), err)
	}
	return 0, ctx.Err()
}

// sizeTime is how long the start of a command waits for its terminal size, which clients send
// once they have opened their streams, a round trip later. Tests replace it.
var sizeTime = 250 * time.Millisecond

// firstSize returns the size of the client's terminal at the start of the command: many programs
// read it only then. It is 0 if the client sends none.
func firstSize(st streaming.Streams) (size streaming.Size) {
	if !st.TTY || st.Resize == nil {
		return size
	}
	select {
	case size = <-st.Resize:
	case <-time.After(sizeTime):
	}
	return size
}

// followSize applies the sizes of the client's terminal. One that cannot be set is skipped: unread
// sizes would block the client's input.
func followSize(sizes <-chan streaming.Size, set func(w, h uint16) error) {
	if sizes == nil {
		return // the client's protocol has none: a nil channel would be waited for forever
	}
	for size := range sizes {
		_ = set(size.Width, size.Height)
	}
}
