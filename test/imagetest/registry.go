package imagetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// A Registry is a registry in this process that can be made to misbehave.
type Registry struct {
	t    testing.TB
	Host string

	mu       sync.Mutex
	in       map[string]bool                                          // repository and digest of what was pushed
	requests []string                                                 // "GET /v2/…" since the last call of asked
	before   func(w http.ResponseWriter, r *http.Request) (done bool) // called first for each request
}

// NewRegistry starts a registry on loopback, without TLS, for as long as the test.
func NewRegistry(t testing.TB) *Registry {
	t.Helper()
	r := &Registry{t: t}
	inner := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		r.requests = append(r.requests, req.Method+" "+req.URL.Path)
		before := r.before
		r.mu.Unlock()
		if before != nil && before(w, req) {
			return
		}
		// The registry inside has one set of blobs for all repositories, unlike real ones.
		if repo, d, ok := strings.Cut(req.URL.Path, "/blobs/sha256:"); ok && req.Method == http.MethodGet && !r.pushed(repo+d) {
			http.Error(w, `{"errors":[{"code":"BLOB_UNKNOWN"}]}`, http.StatusNotFound)
			return
		}
		inner.ServeHTTP(w, req)
	}))
	t.Cleanup(srv.Close)
	r.Host = strings.TrimPrefix(srv.URL, "http://")
	return r
}

// pushed reports whether a repository has a blob: the path and its digest in hex.
func (r *Registry) pushed(blob string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.in[blob]
}

// Intercept makes f be called for each request, before the registry handles it.
func (r *Registry) Intercept(f func(w http.ResponseWriter, req *http.Request) (done bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.before = f
}

// Await waits until ch is closed, or the client of req has left: a registry does not close while a
// handler waits, so a test that fails would never end.
func Await(req *http.Request, ch <-chan struct{}) {
	select {
	case <-ch:
	case <-req.Context().Done():
	}
}

// Asked returns the requests to read something, "GET /v2/…" or "HEAD /v2/…", since the last call
// that contain part.
func (r *Registry) Asked(part string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var got []string
	for _, req := range r.requests {
		if (strings.HasPrefix(req, "GET ") || strings.HasPrefix(req, "HEAD ")) && strings.Contains(req, part) {
			got = append(got, req)
		}
	}
	r.requests = nil
	return got
}

// Put uploads data of the media type kind to a path below /v2.
func (r *Registry) Put(path, kind string, data []byte) {
	r.t.Helper()
	req, err := http.NewRequest(http.MethodPut, "http://"+r.Host+path, bytes.NewReader(data))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode >= 300 {
		r.t.Fatalf("put %s: %s", path, resp.Status)
	}
}

// PushBlob puts a blob into a repository.
func (r *Registry) PushBlob(repo string, data []byte) {
	r.t.Helper()
	resp, err := http.Post("http://"+r.Host+"/v2/"+repo+"/blobs/uploads/", "", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp.Body.Close()
	r.mu.Lock()
	if r.in == nil {
		r.in = make(map[string]bool)
	}
	r.in["/v2/"+repo+digest.FromBytes(data).Encoded()] = true
	r.mu.Unlock()
	r.Put(resp.Header.Get("Location")+"?digest="+digest.FromBytes(data).String(), "application/octet-stream", data)
}

// Push puts an image into repo under tag, and returns the manifest's digest.
func (r *Registry) Push(repo, tag string, img *Built) digest.Digest {
	r.t.Helper()
	for _, data := range append(img.Blobs, img.Config) {
		r.PushBlob(repo, data)
	}
	r.Put("/v2/"+repo+"/manifests/"+tag, img.Desc.MediaType, img.Manifest)
	return img.Desc.Digest
}

// PushIndex puts a list of images into repo under tag, and returns its digest.
func (r *Registry) PushIndex(repo, tag string, imgs ...*Built) digest.Digest {
	r.t.Helper()
	index := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex}
	for _, img := range imgs {
		r.Push(repo, img.Desc.Digest.String(), img)
		index.Manifests = append(index.Manifests, img.Desc)
	}
	data := MustJSON(r.t, index)
	r.Put("/v2/"+repo+"/manifests/"+tag, v1.MediaTypeImageIndex, data)
	return digest.FromBytes(data)
}

// PushArtifact puts files, names and contents by turns, into repo under tag.
func (r *Registry) PushArtifact(repo, tag string, files ...string) digest.Digest {
	r.t.Helper()
	r.PushBlob(repo, []byte("{}"))
	m := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		ArtifactType: "application/vnd.example", Config: v1.DescriptorEmptyJSON}
	for i := 0; i < len(files); i += 2 {
		data := []byte(files[i+1])
		r.PushBlob(repo, data)
		l := v1.Descriptor{MediaType: "application/octet-stream", Digest: digest.FromBytes(data), Size: int64(len(data))}
		if files[i] != "" {
			l.Annotations = map[string]string{v1.AnnotationTitle: files[i]}
		}
		m.Layers = append(m.Layers, l)
	}
	data, err := json.Marshal(m)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Put("/v2/"+repo+"/manifests/"+tag, m.MediaType, data)
	return digest.FromBytes(data)
}

// Forward does what a proxy in front of r does.
func (r *Registry) Forward(w http.ResponseWriter, req *http.Request) {
	out := req.Clone(req.Context())
	out.RequestURI = ""
	resp, err := http.DefaultTransport.RoundTrip(out)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	w.WriteHeader(resp.StatusCode)
	if _, err := io.Copy(w, resp.Body); err != nil {
		r.t.Error(err)
	}
}

// Overhear makes the registry ask each client for credentials; heard returns what it was
// sent.
func (r *Registry) Overhear(scheme string) (heard func() string) {
	var mu sync.Mutex
	var all []string
	r.Intercept(func(w http.ResponseWriter, req *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if h := req.Header.Get("Authorization"); h != "" {
			all = append(all, h)
		}
		if req.URL.Path == "/token" {
			io.WriteString(w, `{"token":"anybody's"}`)
			return true
		}
		if req.URL.Path == "/v2/" {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`%s realm="http://%s/token"`, scheme, r.Host))
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		return false
	})
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		defer func() { all = nil }()
		return strings.Join(all, "\n")
	}
}

// Guard makes a repository require user "me" with password "pass".
func (r *Registry) Guard(repo string) {
	r.Intercept(func(w http.ResponseWriter, req *http.Request) bool {
		user, password, _ := req.BasicAuth()
		if user == "me" && password == "pass" || req.URL.Path != "/v2/" && !strings.HasPrefix(req.URL.Path, "/v2/"+repo+"/") {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		if req.URL.Path != "/v2/" || user != "" || password != "" { // without credentials the library sends empty ones
			http.Error(w, "", http.StatusUnauthorized)
			return true
		}
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
}
