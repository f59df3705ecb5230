// Package kubectl serves what kubectl needs and nothing of crisp's own does. It could be
// deleted: crisp would lose nothing else. A Handler stands before the api.Server, which does
// not know of it; what it does not answer it leaves to the server.
//
// Without these a stock kubectl (1.32, 1.33) fails, with its defaults:
//
//	discovery.go  every command: which kinds there are, and where
//	table.go      get: it prints the cells that it is given
//	openapi.go    apply, create -f, replace: else they ask for --validate=false
//	schema.go     explain
//	protobuf.go   create configmap, secret, namespace, deployment, job; auth can-i: they send
//	              it whatever the server is, and try no JSON when it is refused
//	patch.go      apply, edit, patch, label, annotate, set, rollout restart, debug
//	scale.go      scale
//	access.go     auth can-i; create and apply of namespaces
//	use.go        top
package kubectl

import (
	"bytes"
	"io"
	"net/http"

	"github.com/crisp-cri/crisp/agent/api"
	"github.com/crisp-cri/crisp/agent/store"
)

// A Handler serves what only kubectl needs, and leaves all else to the server.
type Handler struct {
	server  *api.Server
	store   *store.Store
	version string // of crisp
	mux     *http.ServeMux
}

// New returns a handler of all requests. objects are those of the server.
func New(s *api.Server, objects *store.Store, version string) *Handler {
	h := &Handler{s, objects, version, http.NewServeMux()}
	h.mux.Handle("/", s)
	h.routeDiscovery()
	h.routeOpenAPI()
	h.routePatch()
	h.routeScale()
	h.routeNamespaces()
	h.routeAccess()
	h.routeUsage()
	return h
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if wantsTable(r) {
		w = &tables{w, r}
	}
	h.server.Handler(func(w http.ResponseWriter, r *http.Request) error {
		if isProtobuf(r) {
			data, err := api.Body(r)
			if err == nil && len(data) > 0 {
				data, err = fromProtobuf(data)
			}
			if err != nil {
				return err
			}
			r = withBody(r, r.Method, "application/json", data)
		}
		h.mux.ServeHTTP(w, r)
		return nil
	}).ServeHTTP(w, r)
}

func (h *Handler) handle(pattern string, f api.Handler) { h.mux.Handle(pattern, h.server.Handler(f)) }

// withBody is the same request with another body.
func withBody(r *http.Request, method, contentType string, data []byte) *http.Request {
	next := r.Clone(r.Context())
	next.Method, next.Body, next.ContentLength = method, io.NopCloser(bytes.NewReader(data)), int64(len(data))
	next.Header.Set("Content-Type", contentType)
	return next
}
