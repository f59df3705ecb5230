package server

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/network"
	"github.com/crisp-cri/crisp/oci"
)

// forwardGrace is how long the other direction may still deliver data once one side has closed
// the connection for good.
const forwardGrace = time.Second

// answerTime is how long a program may be silent while the client sends nothing more. A client
// that is gone looks the same, and not every program reacts to the end of its input.
const answerTime = 5 * time.Minute

// PortForward returns a URL for connections to ports of the sandbox.
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

// ForwardStream connects rw with a port on localhost in the sandbox. It implements
// streaming.Runtime.
func (r streamRuntime) ForwardStream(ctx context.Context, sandbox string, port int32, rw io.ReadWriteCloser) error {
	sb, err := r.server.readySandbox(sandbox)
	if err != nil {
		return err
	}
	conn, err := r.server.dial(ctx, sb, port)
	if err != nil {
		return err
	}
	return join(ctx, conn, rw)
}

// dialTimeout is how long a pod whose network is not the kernel's may take to answer.
const dialTimeout = 10 * time.Second

// dial connects to a port of a sandbox. One with a shim may have a network stack of its own, which
// has taken the addresses over: it answers on them from outside, and has no loopback that can be
// reached.
func (s *Server) dial(ctx context.Context, sb *oci.Sandbox, port int32) (net.Conn, error) {
	conn, err := network.Dial(ctx, sb.NetNS(), port)
	if err == nil || sb.Config().Shim == nil {
		return conn, err
	}
	d := net.Dialer{Timeout: dialTimeout}
	errs := []error{err}
	for _, ip := range s.index.sandbox(sb).addresses() {
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(ip, strconv.Itoa(int(port))))
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// join copies both ways until both sides are done, and closes conn. The way in which the program
// ends the connection is no error: clients end the whole session on an error.
func join(ctx context.Context, conn net.Conn, rw io.ReadWriteCloser) error {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()

	answers := &answers{Conn: conn}
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, rw)
		// The pod may keep answering a client that sends nothing more.
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			err = errors.Join(err, half.CloseWrite())
		}
		answers.bound()
		sent <- err
	}()
	_, received := io.Copy(rw, answers)
	rw.Close()
	var err error
	select {
	case err = <-sent:
	case <-time.After(forwardGrace):
	}
	if ctx.Err() != nil || ended(received) || ended(err) {
		return nil
	}
	return errors.Join(received, err)
}

// ended reports whether an error only means that a connection has ended: by the client, by the
// program, or by the silence limit.
func ended(err error) bool {
	ends := []error{net.ErrClosed, os.ErrDeadlineExceeded, unix.ECONNRESET, unix.EPIPE, unix.ENOTCONN}
	return slices.ContainsFunc(ends, func(end error) bool { return errors.Is(err, end) })
}

// answers is what a program sends to its client.
type answers struct {
	net.Conn
	bounded atomic.Bool
}

// bound limits how long the program may be silent from now on.
func (a *answers) bound() {
	a.bounded.Store(true)
	a.SetReadDeadline(time.Now().Add(answerTime))
}

func (a *answers) Read(p []byte) (int, error) {
	if a.bounded.Load() { // again for each read: the client may have been slow to take the last one
		a.SetReadDeadline(time.Now().Add(answerTime))
	}
	return a.Conn.Read(p)
}
