// Package listen serves the agent's HTTP API: at a Unix socket for root and a group, and at a
// loopback address with a token, with or without TLS. It serves the public parts at two more
// loopback addresses, without a token.
//
//	<root>/token        the bearer token for the address
//	<root>/tls.pem      the certificate of the address, and its key
//	<root>/kubeconfig   address, certificate and token, for kubectl
package listen

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/rootless"
	"github.com/crisp-cri/crisp/internal/unixsock"
)

// Options say where to serve the API.
type Options struct {
	Root     string // directory of the agent's files
	Socket   string // path of the Unix socket
	Address  string // loopback address of the API with the token, with TLS or without; "" for none
	ReadOnly string // loopback address of the kubelet's read-only port; "" for none
	Health   string // loopback address of the health checks; "" for none
	Log      *slog.Logger
}

// Handlers answer requests.
type Handlers struct {
	All    http.Handler // the whole API: for Address and, with profiles, for the socket
	Shown  http.Handler // for ReadOnly: only its readOnlyPaths are served
	Health http.Handler // health checks
	Page   http.Handler // PagePath at the address, with its own authentication; nil leaves it to All
}

// PagePath is the path below which Handlers.Page is served.
const PagePath = "/page/"

type server struct {
	o Options
	h Handlers
}

// A place is where something is served.
type place uint8

// The socket comes last: whoever finds it finds the kubeconfig too.
const (
	address place = iota
	readOnlyPort
	healthPort
	socket
)

func (s *server) open(p place) (net.Listener, http.Handler, error) {
	switch p {
	case address:
		return s.withToken()
	case readOnlyPort:
		l, err := listenLoopback(s.o.ReadOnly)
		return l, readOnly(s.h.Shown), err
	case healthPort:
		l, err := listenLoopback(s.o.Health)
		return l, s.h.Health, err
	default:
		l, err := listenUnix(s.o.Root, s.o.Socket)
		return l, withProfiles(s.h.All), err
	}
}

// A Server serves the API.
type Server struct {
	ctx context.Context
	server

	mu        sync.Mutex
	missing   []place        // not served yet, for want of room on the disk at first; guarded by mu
	listeners []net.Listener // guarded by mu
	servers   []*http.Server // guarded by mu
	closed    bool           // guarded by mu
}

// Close stops serving.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, served := range s.servers {
		served.Close()
	}
	for _, l := range s.listeners {
		l.Close() // which a server does only once it serves there
	}
}

// Look restores the Unix socket if it was removed, and then returns its path. It serves at what
// found no room on the disk before.
func (s *Server) Look() (again []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil
	}
	err = errors.Join(s.openLocked())
	for _, l := range s.listeners {
		if socket, ok := l.(*unixsock.Listener); ok {
			again, lost := unixsock.LookAll(socket)
			return again, errors.Join(err, lost)
		}
	}
	return nil, err
}

// Begin starts to serve at all addresses, until Close. An address that is not a loopback address
// is a fault.Invalid. What finds no room on the disk for its files is left to Look: the agent is
// what makes room there.
func Begin(ctx context.Context, h Handlers, o Options) (*Server, error) {
	s := &Server{ctx: ctx, server: server{o, h}}
	s.mu.Lock()
	for p, at := range []string{o.Address, o.ReadOnly, o.Health, o.Socket} {
		if at != "" {
			s.missing = append(s.missing, place(p))
		}
	}
	full, err := s.openLocked()
	s.mu.Unlock()
	if err != nil {
		s.Close()
		return nil, err
	}
	if full != nil {
		o.Log.WarnContext(ctx, "not served before there is room on the disk", "err", full)
	}
	return s, nil
}

// openLocked serves at the missing places. Those that find no room stay missing, and those with
// other errors.
func (s *Server) openLocked() (full, other error) {
	missing := s.missing
	s.missing = nil
	for _, p := range missing {
		l, h, err := s.open(p)
		if err != nil {
			s.missing = append(s.missing, p)
			if atomicfile.IsFull(err) {
				full = errors.Join(full, err)
			} else {
				other = errors.Join(other, err)
			}
			continue
		}
		served := &http.Server{
			Handler: h, ReadHeaderTimeout: 30 * time.Second, BaseContext: func(net.Listener) context.Context { return s.ctx },
			ErrorLog: slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug),
		}
		s.listeners, s.servers = append(s.listeners, l), append(s.servers, served)
		go served.Serve(l)
	}
	return full, other
}

// socketGroup is the group that may use the socket besides root. Its members can start
// privileged pods, and so have all rights of root.
const socketGroup = "crisp"

func groupID(name string) (int, bool) {
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, false
	}
	gid, err := strconv.Atoi(g.Gid)
	return gid, err == nil
}

// letGroup lets a group use the socket and, if it is in root, its default place, enter root.
func letGroup(gid int, root, socket string) error {
	if filepath.Dir(socket) == root {
		if err := os.Chown(root, -1, gid); err != nil {
			return err
		}
	}
	return os.Chown(socket, -1, gid)
}

// listenUnix listens at a socket for root and the group.
func listenUnix(root, path string) (*unixsock.Listener, error) {
	// The lock of the root ensures that no other agent serves there.
	l, err := unixsock.Bind(path, unixsock.Options{Mode: 0o660, Dir: 0o750})
	if err != nil {
		return nil, err
	}
	if gid, ok := groupID(socketGroup); ok && !rootless.OfUser() {
		err = letGroup(gid, root, path)
	}
	if err == nil {
		_, err = l.Look() // remembers the socket's owner and group, to restore them
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// listenLoopback listens at an address. It refuses those that other machines can reach.
func listenLoopback(address string) (net.Listener, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fault.Invalid.Errorf("%s: want an address and a port such as 127.0.0.1:10248: %v", address, err)
	}
	if !at.Addr().IsLoopback() {
		return nil, fault.Invalid.Errorf("%s: only loopback addresses can be served", address)
	}
	return rootless.Listen(address)
}

// Token returns the token in <root>/token. If it is missing or blank, Token makes one of 128
// random bits in hexadecimal.
func Token(root string) (string, error) {
	path := filepath.Join(root, "token")
	token, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && strings.TrimSpace(string(token)) == "" {
		raw := make([]byte, 16)
		rand.Read(raw)
		token = []byte(hex.EncodeToString(raw))
		err = atomicfile.Write(path, token, 0o600)
	}
	return strings.TrimSpace(string(token)), err
}

// withToken listens at the address, with TLS and without, writes a kubeconfig for it, and requires
// the token except for the page.
func (s *server) withToken() (_ net.Listener, _ http.Handler, err error) {
	l, err := listenLoopback(s.o.Address)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	token, err := Token(s.o.Root)
	if err != nil {
		return nil, nil, err
	}
	kept := &keptCertificate{root: s.o.Root, log: s.o.Log, renewed: func(text []byte) error {
		return writeKubeconfig(s.o.Root, l.Addr().String(), token, text)
	}}
	if err := kept.renew(); err != nil {
		return nil, nil, err
	}
	// Streams such as those of exec upgrade HTTP/1.1.
	secure := eitherListener{l, &tls.Config{GetCertificate: kept.get, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}}
	want := []byte("Bearer " + token)
	return secure, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.h.Page != nil && strings.HasPrefix(r.URL.Path, PagePath) {
			s.h.Page.ServeHTTP(w, r)
			return
		}
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), want) != 1 {
			http.Error(w, "the token of the agent is needed: "+filepath.Join(s.o.Root, "token"), http.StatusUnauthorized)
			return
		}
		s.h.All.ServeHTTP(w, r)
	}), nil
}

// readOnlyPaths are those that a kubelet serves on its read-only port.
var readOnlyPaths = []string{"/healthz", "/pods", "/metrics", "/stats/summary", "/configz"}

// readOnly serves the readOnlyPaths of h, if the host of a request is a loopback address or
// localhost. That prevents DNS rebinding: a page in a browser on this node, whose host name an
// attacker made to resolve to 127.0.0.1, still sends that name as the host.
func readOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !IsLocal(r.Host) {
			http.Error(w, "ask for 127.0.0.1 or localhost", http.StatusMisdirectedRequest)
			return
		}
		for _, path := range readOnlyPaths {
			if (r.Method == http.MethodGet || r.Method == http.MethodHead) && (r.URL.Path == path || strings.HasPrefix(r.URL.Path, path+"/")) {
				h.ServeHTTP(w, r)
				return
			}
		}
		http.NotFound(w, r)
	})
}

// IsLocal reports whether a Host header is a loopback address or localhost, with or without a
// port.
func IsLocal(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]")
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback() || strings.EqualFold(host, "localhost")
}
