package criconn

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

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
