package server

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/network"
	"github.com/crisp-cri/crisp/oci"
)

// forwardGrace is how long the other direction may still deliver data once one
// side has closed the connection for good.
const forwardGrace = time.Second

// PortForward returns a URL through which ports of the sandbox can be connected
// to.
func (s *Server) PortForward(_ context.Context, req *cri.PortForwardRequest) (*cri.PortForwardResponse, error) {
	sb, err := s.readySandbox(req.PodSandboxId)
	if err != nil {
		return nil, err
	}
	return s.streaming.PortForward(&cri.PortForwardRequest{PodSandboxId: sb.ID(), Port: req.Port})
}

func (s *Server) readySandbox(id string) (*oci.Sandbox, error) {
	sb, err := s.runtime.Sandbox(id)
	if err != nil {
		return nil, err
	}
	if st := sb.State(); st != oci.SandboxReady {
		return nil, fault.WrongState.Errorf("sandbox %s is %s", sb.ID(), st)
	}
	return sb, nil
}

// ForwardStream connects rw with a port of localhost in the sandbox. It is for
// streaming.Runtime.
func (r streamRuntime) ForwardStream(ctx context.Context, sandbox string, port int32, rw io.ReadWriteCloser) error {
	sb, err := r.server.readySandbox(sandbox)
	if err != nil {
		return err
	}
	conn, err := network.Dial(ctx, sb.NetNS(), port)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()

	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, rw)
		// The pod may go on answering a client that sends nothing more.
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			err = errors.Join(err, half.CloseWrite())
		}
		sent <- err
	}()
	_, received := io.Copy(rw, conn)
	rw.Close()
	select {
	case err = <-sent:
	case <-time.After(forwardGrace):
	}
	if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
		return nil // the client has gone
	}
	return errors.Join(received, err)
}
