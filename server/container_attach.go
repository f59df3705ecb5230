package server

import (
	"context"
	"io"
	"sync"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/streaming"
)

// Attach returns a URL at which the container's own streams can be had, from the
// time of the connection on.
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

// AttachStream connects a client of streaming with a container until the
// container ends or the client leaves. The container goes on without it.
func (s *Server) AttachStream(ctx context.Context, container string, st streaming.Streams) error {
	c, err := s.runningContainer(container)
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
			if a.Stdin != nil {
				a.Stdin.Close()
			}
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
	defer context.AfterFunc(ctx, closeAll)()

	if st.TTY {
		go followSize(st.Resize, func(w, h uint16) error { return c.Resize(ctx, w, h) })
	}
	if st.Stdin != nil && a.Stdin != nil {
		go func() {
			io.Copy(a.Stdin, st.Stdin)
			detach()
		}()
	}
	var output outputs
	output.copy(st.Stdout, a.Stdout)
	output.copy(st.Stderr, a.Stderr)
	output.copying.Wait()
	return nil
}
