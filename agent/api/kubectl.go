package api

import (
	"bytes"
	"io"
	"net/http"

	"github.com/crisp-cri/crisp/agent/store"
)

// A Kubectl serves what only kubectl needs, and leaves all else to the Server.
type Kubectl struct {
	server  *Server
	store   *store.Store
	version string // of crisp
	mux     *http.ServeMux
}

// NewKubectl returns a handler of all requests. objects are those of the server.
func NewKubectl(s *Server, objects *store.Store, version string) *Kubectl {
	c := &Kubectl{s, objects, version, http.NewServeMux()}
	c.mux.Handle("/", s)
	c.routeDiscovery()
	c.routeOpenAPI()
	c.routePatch()
	c.routeScale()
	c.routeNamespaces()
	c.routeAccess()
	c.routeUsage()
	return c
}

// ServeHTTP implements http.Handler.
func (c *Kubectl) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if wantsTable(r) {
		w = &tables{w, r}
	}
	c.server.Handler(func(w http.ResponseWriter, r *http.Request) error {
		if isProtobuf(r) {
			data, err := Body(r)
			if err == nil && len(data) > 0 {
				data, err = fromProtobuf(data)
			}
			if err != nil {
				return err
			}
			r = withBody(r, r.Method, "application/json", data)
		}
		c.mux.ServeHTTP(w, r)
		return nil
	}).ServeHTTP(w, r)
}

func (c *Kubectl) handle(pattern string, f Handler) { c.mux.Handle(pattern, c.server.Handler(f)) }

// withBody is the same request with another body.
func withBody(r *http.Request, method, contentType string, data []byte) *http.Request {
	next := r.Clone(r.Context())
	next.Method, next.Body, next.ContentLength = method, io.NopCloser(bytes.NewReader(data)), int64(len(data))
	next.Header.Set("Content-Type", contentType)
	return next
}
