package streaming

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// A pipes is a listener of connections in memory.
type pipes struct {
	come   chan net.Conn
	closed chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.come:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error   { close(p.closed); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// Clients without a token cannot keep connections open: neither one that sends nothing, nor one
// that is kept alive after a response, nor one whose request never ends.
func TestConnectionsWithoutTokenEnd(t *testing.T) {
	for name, talk := range map[string]func(net.Conn) error{
		"silent": func(net.Conn) error { return nil },
		"kept alive": func(c net.Conn) error {
			if _, err := io.WriteString(c, "GET /exec/guessed HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				return err
			}
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				return err
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				return err
			}
			if resp.StatusCode != http.StatusNotFound || resp.Close {
				return fmt.Errorf("the answer is %s, close %v", resp.Status, resp.Close)
			}
			return nil
		},
		"half a request": func(c net.Conn) error {
			_, err := io.WriteString(c, "GET /exec/guessed HTTP/1.1\r\nHost:")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				listening := pipes{make(chan net.Conn), make(chan struct{})}
				s, err := New(Options{Listener: listening}, fake{})
				if err != nil {
					t.Fatal(err)
				}
				ours, theirs := net.Pipe()
				listening.come <- theirs
				if err := talk(ours); err != nil {
					t.Fatal(err)
				}
				if err := ours.SetReadDeadline(time.Now().Add(time.Hour)); err != nil {
					t.Fatal(err)
				}
				// There may be a response before the end.
				if _, err := io.Copy(io.Discard, ours); err != nil && !errors.Is(err, io.ErrClosedPipe) {
					t.Errorf("the connection is still there: %v", err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
