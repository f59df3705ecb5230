package streaming

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/websocket"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// PortForward returns the URL at which req will be served, once.
func (s *Server) PortForward(req *cri.PortForwardRequest) (*cri.PortForwardResponse, error) {
	path, err := s.tokens.add("portforward", func(w http.ResponseWriter, r *http.Request) {
		serve := func(w http.ResponseWriter, r *http.Request) {
			a := &adapter{ctx: r.Context(), runtime: s.runtime, forwards: forwards{log: s.log}}
			portforward.ServePortForward(w, r, a, req.PodSandboxId, "", &portforward.V4Options{Ports: req.Port},
				s.idle(), creationTimeout, portforward.SupportedProtocols)
		}
		if wsstream.IsWebSocketRequestWithTunnelingProtocol(r) {
			tunnel(w, r, serve)
			return
		}
		serve(w, r)
	})
	if err != nil {
		return nil, err
	}
	return &cri.PortForwardResponse{Url: s.base + path}, nil
}

// maxForwards bounds the connections that one session forwards at a time.
const maxForwards = 1000

// stallTime is how long a program may read nothing of a connection that holds up the
// others of its session. Tests replace it.
var stallTime = 30 * time.Second

var errStalled = errors.New("the program reads nothing")

// forwards are the connections of one PortForward session. A session has no flow
// control of its own: its frames are handled in their order, and an unread one holds up those
// behind it.
type forwards struct {
	log  *slog.Logger
	open atomic.Int64
}

// carry has forward serve one connection. forward gets a stream that is read ahead, so that the
// others do not wait for it. What the client sends once the connection has ended is dropped.
func (f *forwards) carry(ctx context.Context, stream io.ReadWriteCloser, forward func(context.Context, io.ReadWriteCloser) error) error {
	defer f.open.Add(-1)
	if f.open.Add(1) > maxForwards {
		// An error would end the others: clients end the whole session for one.
		f.log.WarnContext(ctx, "forwarded connection was ended: the session has too many", "most", maxForwards)
		drop(stream)
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ahead, read := newReadAhead(), make(chan struct{})
	defer ahead.drop()
	go func() {
		defer close(read)
		ahead.fill(stream, func(room <-chan struct{}) bool { return f.wait(ctx, cancel, room) })
	}()
	err := forward(ctx, forwarded{stream, ahead})
	if errors.Is(context.Cause(ctx), errStalled) {
		f.log.WarnContext(ctx, "forwarded connection was ended, as it held up others", "err", errStalled)
	}
	cancel(nil)
	drop(stream)
	<-read
	return err
}

// drop ends a stream, and what the client still sends is dropped.
func drop(stream io.Closer) {
	stream.Close()
	if s, ok := stream.(interface{ Reset() error }); ok {
		s.Reset() // after Close it tells the client nothing
	}
}

// wait waits for room, and gives up when ctx has ended. When no room is made for
// stallTime while there are other connections, it ends this one.
func (f *forwards) wait(ctx context.Context, end context.CancelCauseFunc, room <-chan struct{}) bool {
	stalled := time.NewTicker(stallTime)
	defer stalled.Stop()
	for {
		select {
		case <-room:
			return true
		case <-ctx.Done():
			return false
		case <-stalled.C:
			if f.open.Load() > 1 {
				end(errStalled)
				return false
			}
		}
	}
}

// forwarded is a stream that is read ahead.
type forwarded struct {
	io.ReadWriteCloser
	ahead *readAhead
}

func (f forwarded) Read(p []byte) (int, error) { return f.ahead.Read(p) }

// tunnel serves a SPDY connection whose bytes travel in binary messages of a WebSocket, for
// clients behind proxies that do not support SPDY. handle gets the request for a SPDY upgrade as
// if it came from the inner end of the tunnel.
func tunnel(w http.ResponseWriter, r *http.Request, handle http.HandlerFunc) {
	inner := r.Clone(r.Context())
	server := websocket.Server{
		Handshake: func(c *websocket.Config, _ *http.Request) error {
			const want = portforward.WebsocketsSPDYTunnelingPortForwardV1
			if !slices.Contains(c.Protocol, want) {
				return fmt.Errorf("protocols %q are not supported: want %s", c.Protocol, want)
			}
			c.Protocol = []string{want}
			return nil
		},
		Handler: func(ws *websocket.Conn) {
			defer ws.Close()
			ws.PayloadType = websocket.BinaryFrame
			for name := range inner.Header {
				if strings.HasPrefix(name, "Sec-Websocket-") {
					inner.Header.Del(name)
				}
			}
			inner.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
			inner.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
			inner.Header.Set(httpstream.HeaderProtocolVersion, portforward.PortForwardV1Name)
			handle(&tunnelEnd{conn: ws, header: make(http.Header)}, inner)
		},
	}
	server.ServeHTTP(w, r)
}

// tunnelEnd is the response to an upgrade that has already happened: it sends nothing, and
// returns the tunnel when the connection is hijacked.
type tunnelEnd struct {
	conn   net.Conn
	header http.Header
}

func (t *tunnelEnd) Header() http.Header         { return t.header }
func (t *tunnelEnd) WriteHeader(int)             {}
func (t *tunnelEnd) Write(p []byte) (int, error) { return len(p), nil }

func (t *tunnelEnd) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return t.conn, bufio.NewReadWriter(bufio.NewReader(t.conn), bufio.NewWriter(t.conn)), nil
}
