// Package kubectl serves the requests that kubectl makes and crisp's own commands do not. Nothing
// else depends on it. A Handler wraps the api.Server, which does not know of it, and passes all
// other requests on.
//
// Without these parts a stock kubectl (1.32, 1.33) fails with its defaults:
//
//	discovery.go  every command: kinds and their paths
//	table.go      get: it prints the cells from the server
//	openapi.go    apply, create -f, replace: without it they demand --validate=false
//	schema.go     explain
//	protobuf.go   create configmap, secret, namespace, deployment, job; auth can-i: they send
//	              it to any server, and do not fall back to JSON
//	patch.go      apply, edit, patch, label, annotate, set, rollout restart, debug
//	scale.go      scale
//	access.go     auth can-i; create and apply of namespaces
//	use.go        top
package kubectl

import (
	"bytes"
	"io"
	"net/http"

	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/crisp-cri/crisp/apiserver/store"
)

// A Handler serves the requests that only kubectl makes, and passes all others to the server.
type Handler struct {
	server  *api.Server
	store   *store.Store
	version string // crisp's version
	mux     *http.ServeMux
}

// New returns a handler for all requests. objects is the store of the server.
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

// withBody returns the request with another body.
func withBody(r *http.Request, method, contentType string, data []byte) *http.Request {
	next := r.Clone(r.Context())
	next.Method, next.Body, next.ContentLength = method, io.NopCloser(bytes.NewReader(data)), int64(len(data))
	next.Header.Set("Content-Type", contentType)
	return next
}
