package server

import (
	"context"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/streaming"
)

// Attach returns a URL that serves the streams of the container's own process,
// from the time of the connection on.
func (s *Server) Attach(_ context.Context, req *cri.AttachRequest) (*cri.AttachResponse, error) {
	c, err := s.runningContainer(req.ContainerId)
	if err != nil {
		return nil, err
	}
	if config := c.Config(); req.Tty != config.TTY {
		// CRI: "This must match the TTY setting of the container."
		return nil, fault.Invalid.Errorf("container %s has tty %v, but attach wants %v", c.ID(), config.TTY, req.Tty)
	}
	return s.streaming.Attach(&cri.AttachRequest{
		ContainerId: c.ID(), Tty: req.Tty, Stdin: req.Stdin, Stdout: req.Stdout, Stderr: req.Stderr,
	})
}

// AttachStream connects a streaming client to a container until the container ends or the client
// leaves. The container outlives the client. Where its stdin does too, without a terminal, a client
// leaves by closing its input: `kubectl run -i --leave-stdin-open` expects that.
func (r streamRuntime) AttachStream(ctx context.Context, container string, st streaming.Streams) error {
	c, err := r.server.runningContainer(container)
	if err != nil {
		return err
	}
	a, err := c.Attach(ctx, st.Stdin != nil)
	if err != nil {
		return err
	}
	var closeIn sync.Once
	detach := func() {
		closeIn.Do(func() {
			if a.Stdin == nil {
				return
			}
			if r.server.ctx.Err() != nil && c.Config().StdinOnce {
				leaveOpen(a.Stdin)
			}
			a.Stdin.Close()
		})
	}
	closeAll := func() {
		detach()
		a.Stdout.Close()
		if a.Stderr != nil {
			a.Stderr.Close()
		}
	}
	defer closeAll()
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	defer context.AfterFunc(ctx, closeAll)()

	if st.TTY {
		go followSize(st.Resize, func(w, h uint16) error { return c.Resize(ctx, w, h) })
	}
	if st.Stdin != nil && a.Stdin != nil {
		go func() {
			_, err := io.Copy(a.Stdin, st.Stdin)
			detach()
			if err == nil && !c.Config().StdinOnce && !st.TTY {
				leave()
			}
		}()
	}
	var output outputs
	output.copy(st.Stdout, a.Stdout)
	output.copy(st.Stderr, a.Stderr)
	output.copying.Wait()
	return r.server.detached(ctx, c)
}

// leaveOpen keeps a descriptor of f's file open until crispd exits. When crispd stops, its
// client has not closed its input and may attach again to the next crispd; only the end of the
// process shows the executor that crispd ended and not the client.
func leaveOpen(f *os.File) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) { unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3) })
}

// endTime is how long crispd waits for a container's exit after the end of its output.
const endTime = 5 * time.Second

// detached returns an error if the output ended although the container still runs.
func (s *Server) detached(ctx context.Context, c *oci.Container) error {
	timer := time.NewTimer(endTime)
	defer timer.Stop()
	select {
	case <-c.Done():
		return nil
	case <-ctx.Done():
		return nil // the client has left
	case <-timer.C:
		return fault.Unavailable.Errorf("detached from container %s, which runs on: its output was not read in time, or the executor was restarted", c.ID())
	}
}
