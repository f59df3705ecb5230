package image_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// A tokens is a registry's token service. Only its last token is valid.
type tokens struct {
	mu     sync.Mutex
	host   string
	why    string // more parameters of the challenge
	body   string // body of rejected requests
	issued int
	ended  bool
}

// end invalidates the last token before its expiry.
func (ts *tokens) end() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.ended = true
}

// refuse serves requests for tokens, and rejects requests without a valid one.
func (ts *tokens) refuse(w http.ResponseWriter, r *http.Request) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if r.URL.Path == "/token" {
		ts.issued++
		ts.ended = false
		fmt.Fprintf(w, `{"token":"t%d","expires_in":300}`, ts.issued)
		return true
	}
	if !ts.ended && r.Header.Get("Authorization") == fmt.Sprintf("Bearer t%d", ts.issued) {
		return false
	}
	w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="x"`, ts.host)+ts.why)
	http.Error(w, ts.body, http.StatusUnauthorized)
	return true
}

// A token may become invalid within a pull, whatever expiry the registry has promised: the pull
// gets another one and continues.
func TestTokenEndsWithinPull(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	noise := make([]byte, 3<<20)
	rand.NewChaCha8([32]byte{}).Read(noise)
	for i, part := range []string{"manifest", "config", "layer", "rest of a layer"} {
		img := imagetest.BuildOf(t, "plain", v1.Image{}, imagetest.TarOf(t, map[string]string{"a": fmt.Sprint(i), "noise": string(noise)}))
		reg.Intercept(nil)
		reg.PushIndex("app", "v1", img)
		layer := "/blobs/" + digest.FromBytes(img.Blobs[0]).String()
		path := map[string]string{"manifest": "/manifests/" + img.Desc.Digest.String(), "config": "/blobs/" + img.ID()}[part]
		if path == "" {
			path = layer
		}
		ts := &tokens{host: reg.Host, body: `{"errors":[{"code":"UNAUTHORIZED"}]}`}
		if i%2 == 1 { // as Docker Hub and Quay do
			ts.why, ts.body = `,error="invalid_token",error_description="expired"`, ""
		}
		var once sync.Once
		broken := 0 // requests for the layer that fail after one MiB
		if part == "rest of a layer" {
			broken = 2
		}
		var mu sync.Mutex
		reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			mu.Lock()
			breaks := strings.HasSuffix(r.URL.Path, layer) && broken > 0
			mu.Unlock()
			if strings.HasSuffix(r.URL.Path, path) && !breaks {
				once.Do(ts.end)
			}
			if ts.refuse(w, r) {
				return true
			}
			if !breaks {
				return false
			}
			mu.Lock()
			broken--
			mu.Unlock()
			http.ServeContent(&shortWriter{ResponseWriter: w, left: 1 << 20, sent: new(atomic.Int64), stop: func() { panic(http.ErrAbortHandler) }}, r, "", time.Time{}, bytes.NewReader(img.Blobs[0]))
			return true
		})
		got, err := p.Store.Pull(t.Context(), reg.Host+"/app:v1", registry.Caller{})
		if err != nil || got.ID != img.ID() {
			t.Errorf("%s: image is %q: %v", part, got.ID, err)
		}
		if ts.issued < 2 {
			t.Errorf("%s: %d tokens were issued: none has ended", part, ts.issued)
		}
	}
}

// A registry that rejects every token for a layer, and one whose tokens always expire while its
// layer is damaged, are not retried forever.
func TestTokenAlwaysEnds(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	img := imagetest.Build(t, "gzip", "a")
	reg.Push("app", "v1", img)
	for name, want := range map[string]error{"never": fault.Invalid, "damaged": fault.Unavailable} {
		ts := &tokens{host: reg.Host}
		asked := 0
		reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, digest.FromBytes(img.Blobs[0]).String()) {
				asked++
				if name == "never" || asked%2 == 1 {
					ts.end()
				}
				if ts.refuse(w, r) {
					return true
				}
				damages["other"](w, img.Blobs[0])
				return true
			}
			return ts.refuse(w, r)
		})
		_, err := p.Store.Pull(t.Context(), reg.Host+"/app:v1", registry.Caller{})
		failedWith(t, err, want, "")
		if asked > 6 {
			t.Errorf("%s: the layer was asked for %d times", name, asked)
		}
	}
	reg.Intercept(nil)
	p.Pull(reg.Host + "/app:v1")
}
