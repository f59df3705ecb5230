// Package page shows the agent in a browser: the node's pods with their state and events, their
// logs, a shell, images and disk space. Only the shell can change anything.
//
//	browser ── Host, Origin, session ──▶ Server ── the agent's API, in this process
//	                                       └────── the runtime: images, use, pulls
//
// All HTML is generated here, by html/template. The script refreshes the live parts of a page
// (DOMParser runs no scripts), reads a log, and loads xterm.js for a shell. Nothing is loaded
// from other hosts; the Content-Security-Policy forbids it.
//
// Text of containers, images and manifests may be hostile. It is escaped, and visible characters
// replace control characters and those that change the direction of text (visible.go). Other sites
// in the same browser may be hostile too, see guard.go.
//
// A slow browser delays nothing but its own request: a log is read from its file as fast as the
// browser reads it, and the request fails when the browser has read nothing for writePatience. The
// output of a shell waits until the browser has shown what came before.
package page

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"strings"

	internalapi "k8s.io/cri-api/pkg/apis"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/apiserver/listen"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/pulls"
)

// Options configure a Server.
type Options struct {
	API     http.Handler // the agent's API
	Runtime Runtime
	Pulls   Pulls
	Address string // host:port where the page is served
	Key     string // signs the cookies of sessions; another key ends all sessions
	Log     *slog.Logger
}

// A Runtime returns the clients of the CRI services; an error as long as the runtime has not
// answered.
type Runtime interface {
	Runtime() (internalapi.RuntimeService, internalapi.ImageManagerService, error)
}

// Pulls lists the pulls under way and those that have just ended (Ended is set).
type Pulls interface {
	List(ctx context.Context) []pulls.Pull // none if the runtime does not report them
}

// A Server serves the page.
type Server struct {
	o       Options
	mux     *http.ServeMux
	keys    keys
	samples *sampler
	logs    chan struct{} // a token for each log being read
	shells  chan struct{} // a token for each shell
}

// The maximum numbers of logs being read and of shells, for all browsers together.
const (
	maxLogs   = 32
	maxShells = 16
)

//go:embed static templates
var files embed.FS

var templates = template.Must(template.New("").ParseFS(files, "templates/*.html"))

// New returns a Server. It stops sampling the pods' usage when ctx ends.
func New(ctx context.Context, o Options) *Server {
	s := &Server{
		o: o, mux: http.NewServeMux(), samples: newSampler(ctx, o.Runtime),
		logs: make(chan struct{}, maxLogs), shells: make(chan struct{}, maxShells),
	}
	s.mux.Handle("GET /page/static/", http.StripPrefix("/page/", http.FileServerFS(files)))
	s.mux.HandleFunc("GET /page/open", s.open)
	s.mux.HandleFunc("POST /page/leave", s.leave)
	s.handle("GET /page/{$}", s.pods)
	s.handle("GET /page/images", s.images)
	s.handle("GET /page/pods/{namespace}/{name}", s.pod)
	s.handle("GET /page/pods/{namespace}/{name}/log/{container}", s.log)
	s.handle("GET /page/pods/{namespace}/{name}/lines/{container}", s.lines)
	s.handle("GET /page/pods/{namespace}/{name}/shell/{container}", s.shell)
	s.handle("GET /page/pods/{namespace}/{name}/exec/{container}", s.exec)
	return s
}

// handle serves f to browsers with a session.
func (s *Server) handle(pattern string, f func(http.ResponseWriter, *http.Request) error) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if !s.hasSession(r) {
			s.show(w, r, http.StatusUnauthorized, "message", view{Title: "No session", Body: "This browser has no session, or it is over. The command \"crisp page\", as root on the node, prints a URL that begins one."})
			return
		}
		if err := f(w, r); err != nil && !errors.Is(err, context.Canceled) {
			s.fail(w, r, err)
		}
	})
}

func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	code := http.StatusInternalServerError
	switch err = criruntime.Fault(err); {
	case errors.Is(err, fault.NotFound):
		code = http.StatusNotFound
	case errors.Is(err, fault.Unavailable):
		code = http.StatusServiceUnavailable
	case errors.Is(err, fault.Invalid):
		code = http.StatusBadRequest
	default:
		s.o.Log.WarnContext(r.Context(), "page failed", "path", r.URL.Path, "err", err)
	}
	s.show(w, r, code, "message", view{Title: http.StatusText(code), Body: err.Error()})
}

// A view is the data of a template.
type view struct {
	Title string
	Body  any
	Live  bool // the request is for the live parts only
	In    bool // there is a session
}

// show answers with a page. It renders the page before it sends anything, so that an error does not
// leave half a page.
func (s *Server) show(w http.ResponseWriter, r *http.Request, code int, name string, v view) {
	v.Live, v.In = r.URL.Query().Has("live"), code != http.StatusUnauthorized
	var out bytes.Buffer
	if err := templates.ExecuteTemplate(&out, name+".html", v); err != nil {
		s.o.Log.WarnContext(r.Context(), "page failed", "path", r.URL.Path, "err", err)
		http.Error(w, "this page cannot be shown", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	w.Write(visible(out.Bytes()))
}

// Opener returns a handler of POST /crisp/v1/page, which answers with a URL that opens the page
// once (text/plain, one line), and passes other requests to next. It must only be served to
// clients that may do everything.
func (s *Server) Opener(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/crisp/v1/page" {
			next.ServeHTTP(w, r)
			return
		}
		if r.Method != http.MethodPost {
			http.Error(w, "want POST", http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Write([]byte(strings.Join([]string{"http://", s.o.Address, listen.PagePath, "open?key=", s.keys.issue(), "\n"}, "")))
	})
}
