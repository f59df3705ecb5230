package streaming

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// upgrades has the headers of requests for each protocol.
var upgrades = []string{
	"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n",
	"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: portforward.k8s.io\r\n",
	webSocket + "v5.channel.k8s.io\r\n",
	webSocket + "v4.channel.k8s.io\r\n",
	webSocket + "base64.channel.k8s.io\r\n",
	webSocket + "SPDY/3.1+portforward.k8s.io\r\n",
	"",
}

const webSocket = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://localhost\r\nSec-WebSocket-Protocol: "

// FuzzStream connects to each kind of stream with each protocol and sends arbitrary data: no
// handler panics, the connection ends, and so does the command.
func FuzzStream(f *testing.F) {
	frames := []string{
		"", "\x82\x80\x00\x00\x00\x00", "\x82\x83\x00\x00\x00\x00\x00ab", "\x82\x82\x00\x00\x00\x00\xff\x00", "\x82\x82\x00\x00\x00\x00\x09x", "\x88\x80\x00\x00\x00\x00", "\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff",
		"\x82\x90\x00\x00\x00\x00\x04{\"Width\":-1,\"Hei", "\x80\x03\x00\x01\x01\x00\x00\x0a\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00", "\x80\x03\x00\x06\x00\x00\x00\x04\x00\x00\x00\x01", "\x80\x03\x00\x04\x00\x00\x00\x04\xff\xff\xff\xff",
		"\x00\x00\x00\x01\x00\x00\x00\x05hello", "\x80\x03\x00\x03\x00\x00\x00\x08\x00\x00\x00\x01\x00\x00\x00\x01",
	}
	for kind := range 3 {
		for protocol := range upgrades {
			for _, frame := range frames {
				f.Add(uint8(kind), uint8(protocol), []byte(frame))
			}
		}
	}
	utilruntime.ErrorHandlers = nil // the handlers of the library log each client
	defer func(was time.Duration) { creationTimeout = was }(creationTimeout)
	creationTimeout = 20 * time.Millisecond
	var log stacks
	drain := func(s Streams) {
		if s.Stdout != nil {
			fmt.Fprint(s.Stdout, "out")
		}
		if s.Stdin != nil {
			io.Copy(io.Discard, s.Stdin)
		}
	}
	s, err := New(Options{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}, fake{
		exec:   func(_ context.Context, _ string, _ []string, s Streams) (int32, error) { drain(s); return 3, nil },
		attach: func(_ context.Context, _ string, s Streams) error { drain(s); return nil },
		forward: func(_ context.Context, _ string, _ int32, rw io.ReadWriteCloser) error {
			io.Copy(io.Discard, rw)
			return rw.Close()
		},
	})
	if err != nil {
		f.Fatal(err)
	}
	defer s.Close()
	f.Fuzz(func(t *testing.T, kind, protocol uint8, data []byte) {
		var at string
		switch kind % 3 {
		case 0:
			resp, err := s.Exec(&cri.ExecRequest{ContainerId: "c", Cmd: []string{"a"}, Stdin: true, Stdout: true, Tty: kind > 127, Stderr: kind <= 127})
			if err != nil {
				t.Fatal(err)
			}
			at = resp.Url
		case 1:
			resp, err := s.Attach(&cri.AttachRequest{ContainerId: "c", Stdin: true, Stdout: true})
			if err != nil {
				t.Fatal(err)
			}
			at = resp.Url
		case 2:
			resp, err := s.PortForward(&cri.PortForwardRequest{PodSandboxId: "s", Port: []int32{80}})
			if err != nil {
				t.Fatal(err)
			}
			at = resp.Url
		}
		u, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", u.Host)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n%s", u.Path, u.Host, upgrades[int(protocol)%len(upgrades)], data)
		conn.(*net.TCPConn).CloseWrite()
		if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Errorf("the connection does not end: %v", err)
		}
		conn.Close()
		for end := time.Now().Add(time.Minute); s.Sessions() > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d sessions of clients that have gone", s.Sessions())
			}
		}
		if text := log.panic(); text != "" {
			t.Error(text)
		}
	})
}

// stacks is a log that keeps what net/http logs of a handler that panicked.
type stacks struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (s *stacks) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes.Contains(p, []byte("panic")) {
		s.text.Write(p)
	}
	return len(p), nil
}

func (s *stacks) panic() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.text.Reset()
	return s.text.String()
}
