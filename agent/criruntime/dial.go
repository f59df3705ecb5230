package criruntime

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/periodic"
	"github.com/crisp-cri/crisp/internal/poke"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	criclient "k8s.io/cri-client/pkg"
)

// CallTimeout bounds calls that set no timeout. It is the default of the
// kubelet's --runtime-request-timeout.
const CallTimeout = 2 * time.Minute

// Dial connects to the CRI services at endpoint ("unix:///run/crisp/crisp.sock"), which must
// answer a first call within patience. Later the connection restores itself when it is lost.
// An error of kind fault.Invalid means that the server at endpoint is not a runtime, so that
// waiting is of no use; otherwise the error is fault.Unavailable.
func Dial(ctx context.Context, endpoint string, patience time.Duration) (internalapi.RuntimeService, internalapi.ImageManagerService, error) {
	// The client has one timeout for the first answer and for every later RPC, so the
	// context bounds the first.
	answered, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	runtime, err := criclient.NewRemoteRuntimeServiceBuilder().
		WithEndpoint(endpoint).WithConnectionTimeout(CallTimeout).WithTracerProvider(nil).WithUseStreaming(true).Build(answered)
	if err != nil {
		if why := foreign(endpoint, err); why != nil {
			return nil, nil, why
		}
		return nil, nil, unreachable(endpoint, err)
	}
	images, err := criclient.NewRemoteImageServiceBuilder().
		WithEndpoint(endpoint).WithConnectionTimeout(CallTimeout).WithTracerProvider(nil).WithUseStreaming(true).Build(answered)
	if err != nil {
		runtime.Close(ctx)
		return nil, nil, unreachable(endpoint, err)
	}
	return runtime, images, nil
}

// unreachable returns a fault.Unavailable with only the innermost of the client's wrapped
// errors.
func unreachable(endpoint string, err error) error {
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	if text := Fault(err); errors.Is(text, fault.Unavailable) {
		return text
	}
	return fault.Unavailable.Errorf("runtime at %s is not reachable: %v", endpoint, Fault(err))
}

// dialRetry is how long Await waits before it calls dial again. The agent may be started before
// the runtime.
const dialRetry = time.Second

// An Answer has the services of a runtime that has answered, or why none ever will.
type Answer struct {
	Runtime internalapi.RuntimeService
	Images  internalapi.ImageManagerService
	Err     error
}

// Await calls dial, every retry, until it succeeds or fails with an error of kind
// fault.Invalid, and returns the result; once ctx has ended, an Answer with its error. It
// wakes tried after each attempt that it will repeat.
func (c *Connection) Await(ctx context.Context, dial func(context.Context) (internalapi.RuntimeService, internalapi.ImageManagerService, error), tried chan<- struct{}) Answer {
	complaint := ""
	for ctx.Err() == nil {
		runtime, images, err := dial(ctx)
		if err == nil || errors.Is(err, fault.Invalid) {
			return Answer{runtime, images, err}
		}
		if text := err.Error(); text != complaint {
			c.log.WarnContext(ctx, "runtime does not answer yet", "err", err)
			complaint = text
		}
		poke.Wake(tried)
		periodic.Pause(ctx, dialRetry)
	}
	return Answer{Err: ctx.Err()}
}

// answerTime is how long to wait for the first frame of an HTTP/2 server, which sends it as
// soon as a client connects.
const answerTime = time.Second

// foreign returns a fault.Invalid if the server at endpoint is certainly not a runtime with
// CRI v1, and nil if it is or may become one. err is the error of a call to it.
func foreign(endpoint string, err error) error {
	if answer, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok && answer.GRPCStatus().Code() == codes.Unimplemented {
		return fault.Invalid.Errorf("the server at %s does not speak CRI v1: %s", endpoint, answer.GRPCStatus().Message())
	}
	path, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok {
		return nil
	}
	if info, err := os.Stat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return fault.Invalid.Errorf("%s is not a socket", path)
	}
	if err := speaksHTTP2(path); err != nil {
		return fault.Invalid.Errorf("the server at %s does not speak CRI: %v", endpoint, err)
	}
	return nil
}

// speaksHTTP2 returns an error if the server at a Unix socket answers the connection preface
// of HTTP/2 (RFC 9113, 3.4) with anything but a SETTINGS frame. A server that does not answer
// may be a runtime that is starting or ending.
func speaksHTTP2(path string) error {
	conn, err := net.DialTimeout("unix", path, answerTime)
	if err != nil {
		return nil
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return nil
	}
	// A server that hangs up at once may have answered before.
	_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	const settings = 4
	header := make([]byte, 9) // length (3 bytes), type, flags, stream
	n, err := io.ReadFull(conn, header)
	switch {
	case errors.Is(err, io.EOF) || n == 0:
		return nil
	case bytes.HasPrefix(header, []byte("HTTP/1")):
		return errors.New("it is an HTTP/1 server")
	case n < len(header) || header[3] != settings:
		return errors.New("it speaks another protocol")
	}
	return nil
}
