package streaming

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream"
)

// forwarders are the two ways in which clients forward ports.
var forwarders = map[string]func(t *testing.T, u *url.URL) httpstream.Dialer{
	"spdy": func(t *testing.T, u *url.URL) httpstream.Dialer {
		tr, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: tr}, "POST", u)
	},
	"websocket": func(t *testing.T, u *url.URL) httpstream.Dialer {
		d, err := portforward.NewSPDYOverWebsocketDialerForStreaming(u, &rest.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return d
	},
}

// forwardPort starts a session that forwards a port and returns the address to connect to.
func forwardPort(t *testing.T, s *Server, dialer func(*testing.T, *url.URL) httpstream.Dialer) string {
	t.Helper()
	resp, err := s.PortForward(&cri.PortForwardRequest{PodSandboxId: "sb"})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(resp.Url)
	if err != nil {
		t.Fatal(err)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	pf, err := portforward.NewForStreaming(dialer(t, u), []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- pf.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("forward: %v", err)
	}
	t.Cleanup(func() {
		close(stop)
		<-done
	})
	ports, err := pf.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0].Local)
}

// connect connects to a forwarded port.
func connect(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// wantEcho fails the test unless each of a few connections, more than the library has
// queues for frames, gets its answer.
func wantEcho(t *testing.T, addr string) {
	t.Helper()
	for i := range 12 {
		c := connect(t, addr)
		c.SetDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprintf(c, "echo %d", i)
		c.(*net.TCPConn).CloseWrite()
		if got, err := io.ReadAll(c); err != nil || string(got) != fmt.Sprintf("echo %d", i) {
			t.Fatalf("connection %d beside: got %q, %v", i, got, err)
		}
	}
}

// echo answers with what it reads.
func echo(rw io.ReadWriteCloser) error {
	if _, err := io.Copy(rw, rw); err != nil {
		return err
	}
	return rw.Close()
}

// pour sends to c until it is closed.
func pour(t *testing.T, c net.Conn) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for buf := make([]byte, 64<<10); ; {
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		c.Close()
		<-ended
	})
}

// A program that closes its connection early, while the client still sends, does not affect the
// other connections of the session.
func TestForwardToAProgramThatClosesEarly(t *testing.T) {
	for name, dialer := range forwarders {
		t.Run(name, func(t *testing.T) {
			closing := make(chan struct{}, 1)
			closing <- struct{}{}
			s := start(t, fake{forward: func(_ context.Context, _ string, _ int32, rw io.ReadWriteCloser) error {
				select {
				case <-closing:
					return rw.Close()
				default:
					return echo(rw)
				}
			}})
			addr := forwardPort(t, s, dialer)
			c := connect(t, addr)
			pour(t, c)
			io.Copy(io.Discard, c)
			wantEcho(t, addr)
		})
	}
}

// A program that does not read for a while, however much is sent to it, does not block the others
// for good; its own connection is ended.
func TestForwardToAProgramThatReadsNothing(t *testing.T) {
	defer func(d time.Duration) { stallTime = d }(stallTime)
	stallTime = 50 * time.Millisecond
	for name, dialer := range forwarders {
		t.Run(name, func(t *testing.T) {
			beside, stalled := make(chan struct{}), make(chan struct{})
			var count atomic.Int32
			s := start(t, fake{forward: func(ctx context.Context, _ string, _ int32, rw io.ReadWriteCloser) error {
				switch count.Add(1) {
				case 1:
					close(beside)
				case 2:
					<-ctx.Done() // cancelled for the sake of the others
					close(stalled)
					return nil
				}
				return echo(rw)
			}})
			addr := forwardPort(t, s, dialer)
			other := connect(t, addr)
			<-beside
			pour(t, connect(t, addr))
			<-stalled
			other.Write([]byte("echo"))
			other.(*net.TCPConn).CloseWrite()
			if got, err := io.ReadAll(other); err != nil || string(got) != "echo" {
				t.Errorf("connection beside: got %q, %v", got, err)
			}
			wantEcho(t, addr)
		})
	}
}

// A connection that does not block others may wait for its program.
func TestForwardToAProgramThatTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, stream := net.Pipe()
		f := &forwards{}
		ended := make(chan error, 1)
		go func() {
			ended <- f.carry(t.Context(), stream, func(_ context.Context, rw io.ReadWriteCloser) error {
				time.Sleep(time.Hour)
				got, err := io.ReadAll(rw)
				if err != nil || len(got) != 4<<20 {
					t.Errorf("got %d bytes, %v", len(got), err)
				}
				return nil
			})
		}()
		client.Write(make([]byte, 4<<20))
		client.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A session forwards a bounded number of connections. Another one is closed, and the others are not
// affected.
func TestTooManyForwards(t *testing.T) {
	f := &forwards{log: slog.New(slog.DiscardHandler)}
	f.open.Store(maxForwards)
	client, stream := net.Pipe()
	err := f.carry(t.Context(), stream, func(context.Context, io.ReadWriteCloser) error {
		t.Error("one too many was forwarded")
		return nil
	})
	if err != nil {
		t.Errorf("the session got %v", err)
	}
	if _, err := client.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the client got %v, want the end", err)
	}
	if got := f.open.Load(); got != maxForwards {
		t.Errorf("%d are counted, want %d", got, maxForwards)
	}
}
