// Package streaming serves Exec, Attach and PortForward: the CRI calls that return a URL, at
// which the streams are then served over SPDY or WebSocket.
//
//	kubelet ── Exec ──▶ crispd ── URL with token ──▶ kubelet
//	kubelet ══ HTTP upgrade at that URL ══▶ Server ── Runtime.Exec ──▶ container
//
// A URL is valid for one connection and one minute (token.go). Its token is the only
// authentication, so by default the server listens on the loopback device: the kubelet proxies.
// Connections that have shown no token yet are bounded in time and number (conn.go).
//
// k8s.io/cri-streaming implements SPDY and the older WebSocket protocols. This package adds what
// that library lacks:
//
//	v5.channel.k8s.io for Exec and Attach, the WebSocket protocol that can close
//	    stdin and the only one that client-go speaks by itself (websocket.go);
//	SPDY/3.1+portforward.k8s.io, SPDY in a WebSocket, for PortForward (forward.go);
//	streams that do not block the others of their connection: input that a command
//	    does not read (readahead.go), connections of PortForward (forward.go);
//	detecting that the client disconnected while a command is silent. The library's
//	    context never ends, because the connection was hijacked from net/http, and
//	    the command would run for ever: each connection reports its end (conn.go).
package streaming

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// A Runtime does the work for the server. The contexts end when the client has disconnected or
// the server is closed.
type Runtime interface {
	// ExecStream runs cmd in a container and returns its exit code once it has ended and its
	// output has been written.
	ExecStream(ctx context.Context, container string, cmd []string, s Streams) (code int32, err error)
	// AttachStream connects to a container's own streams until it ends or ctx does.
	AttachStream(ctx context.Context, container string, s Streams) error
	// ForwardStream connects rw to a port of a sandbox until both sides are done.
	ForwardStream(ctx context.Context, sandbox string, port int32, rw io.ReadWriteCloser) error
}

// Streams are the client's ends. A stream that the client did not request is nil. With TTY,
// Stderr is nil and Resize carries the sizes of the client's terminal; Resize is closed when no
// more will come, and may be nil.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.WriteCloser
	TTY            bool
	Resize         <-chan Size
}

// A Size is the size of a terminal, in characters.
type Size = remotecommand.TerminalSize

// Options say where and how a Server listens.
type Options struct {
	Addr        string        // host:port; "" means 127.0.0.1:0
	Listener    net.Listener  // used instead of Addr if not nil; one at a wildcard takes IPv4
	IdleTimeout time.Duration // after which an idle connection is closed; 0 means 4 hours, the kubelet's default
	Log         *slog.Logger  // nil means slog.Default()
}

// headerTimeout bounds how long a client may take to send its request.
const (
	headerTimeout = 5 * time.Second
	idleTimeout   = 4 * time.Hour
)

// creationTimeout bounds how long a client may take after that to open its streams; it may have
// gone. Tests replace it.
var creationTimeout = 30 * time.Second

// A Server serves the streams of one crispd.
type Server struct {
	runtime Runtime
	log     *slog.Logger
	base    string // of its URLs
	tokens  tokens
	http    *http.Server
	cancel  context.CancelFunc
	served  chan struct{}

	idleFor  atomic.Int64 // nanoseconds
	sessions atomic.Int64
}

// SetIdleTimeout replaces Options.IdleTimeout for new connections.
func (s *Server) SetIdleTimeout(d time.Duration) {
	if d <= 0 {
		d = idleTimeout
	}
	s.idleFor.Store(int64(d))
}

func (s *Server) idle() time.Duration { return time.Duration(s.idleFor.Load()) }

// Sessions returns how many clients are being served.
func (s *Server) Sessions() int { return int(s.sessions.Load()) }

// New listens and serves until Close. URLs of an earlier server are not valid.
func New(o Options, r Runtime) (*Server, error) {
	l := o.Listener
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", cmp.Or(o.Addr, "127.0.0.1:0")); err != nil {
			return nil, fmt.Errorf("listen for streams: %w", err)
		}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{
		runtime: r,
		log:     o.Log,
		base:    "http://" + reachable(l.Addr(), o.Log),
		cancel:  cancel,
		served:  make(chan struct{}),
	}
	s.SetIdleTimeout(o.IdleTimeout)
	mux := http.NewServeMux()
	mux.HandleFunc("/{kind}/{token}", s.serve)
	s.http = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       headerTimeout, // of connections without a request, which have shown no token yet
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       connContext,
		ConnState:         connState,
		ErrorLog:          slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	go func() {
		defer close(s.served)
		if err := s.http.Serve(listener{l, new(lobby)}); err != http.ErrServerClosed {
			o.Log.Error("streaming server ended", "err", err)
		}
	}()
	return s, nil
}

// reachable returns the address for URLs of a listener at at. The kubelet and crictl are on this
// node, and a wildcard is no address to connect to. Go has [::] for 0.0.0.0, too, which takes IPv4
// as well, while IPv6 may be disabled.
func reachable(at net.Addr, log *slog.Logger) string {
	tcp, ok := at.(*net.TCPAddr)
	if !ok || tcp.IP.IsLoopback() {
		return at.String()
	}
	log.Warn("streams of exec, attach and port-forward can be reached from other hosts, without encryption", "address", at.String())
	if !tcp.IP.IsUnspecified() {
		return at.String()
	}
	own := net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: tcp.Port}
	return own.String()
}

// Close closes the server and every connection, which ends their work.
func (s *Server) Close() error {
	s.cancel() // closes the hijacked connections, which http.Server.Close does not know
	err := s.http.Close()
	<-s.served
	return err
}

// serve runs the job of the token in the URL.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	job, ok := s.tokens.take(r.PathValue("kind"), r.PathValue("token"))
	if !ok {
		http.NotFound(w, r)
		return
	}
	if c, ok := r.Context().Value(connKey{}).(*conn); ok {
		c.lobby.leave(c)
	}
	// If a client did not create its streams in time, the library leaves its connection open.
	defer closeTaken(r.Context())
	s.sessions.Add(1)
	defer s.sessions.Add(-1)
	job(w, r)
}
