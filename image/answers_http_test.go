package image_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// A layer whose compressed stream is damaged although its digest is right is damaged for ever: the
// error must be Invalid, or the kubelet would fetch it again and again, and must name the blob. What
// gzip(1) accepts is no damage.
func TestDamagedStreams(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	for _, compression := range []string{"gzip", "zstd"} {
		for name, c := range map[string]struct {
			damage func(good []byte) []byte
			want   string // of the error; "" = none
		}{
			"none": {func(b []byte) []byte { return b }, ""},
			"two members": {func(b []byte) []byte {
				empty, _ := imagetest.Compress(t, compression, nil)
				return slices.Concat(b, empty)
			}, ""},
			"cut by 1":       {func(b []byte) []byte { return b[:len(b)-1] }, "cut short"},
			"cut by 6":       {func(b []byte) []byte { return b[:len(b)-6] }, "cut short"},
			"half":           {func(b []byte) []byte { return b[:len(b)/2] }, "cut short"},
			"header":         {func(b []byte) []byte { return b[:7] }, "cut short"},
			"checksum":       {func(b []byte) []byte { b[len(b)-1-4*len(compression)%5] ^= 1; return b }, "decompress"},
			"second is cut":  {func(b []byte) []byte { return slices.Concat(b, b[:len(b)-3]) }, "cut short"},
			"zeros":          {func(b []byte) []byte { return append(b, make([]byte, 512)...) }, map[string]string{"zstd": "decompress"}[compression]},
			"garbage":        {func(b []byte) []byte { return append(b, "garbage"...) }, "decompress"},
			"zeros, garbage": {func(b []byte) []byte { return append(b, "\x00\x00garbage"...) }, "decompress"},
			"another layer":  {func([]byte) []byte { b, _ := imagetest.Compress(t, compression, make([]byte, 1024)); return b }, "does not have the digest"},
			"not compressed": {func([]byte) []byte { return []byte("This is a page, not a layer.") }, "does not have the digest"},
			"nothing":        {func([]byte) []byte { return nil }, "does not have the digest"},
		} {
			t.Run(compression+"/"+name, func(t *testing.T) {
				tar := imagetest.TarOf(t, map[string]string{"file": strings.Repeat("text", 5000), compression: name})
				img := imagetest.BuildOf(t, compression, v1.Image{}, tar)
				img.Blobs[0] = c.damage(bytes.Clone(img.Blobs[0]))
				var m v1.Manifest
				if err := json.Unmarshal(img.Manifest, &m); err != nil {
					t.Fatal(err)
				}
				m.Layers[0].Digest, m.Layers[0].Size = digest.FromBytes(img.Blobs[0]), int64(len(img.Blobs[0]))
				img.Manifest = imagetest.MustJSON(t, m)
				reg.Push("app", "v1", img)
				reg.Asked("")
				_, err := p.Store.Pull(t.Context(), reg.Host+"/app:v1", registry.Caller{})
				if c.want == "" {
					if err != nil {
						t.Error(err)
					}
					return
				}
				failedWith(t, err, fault.Invalid, "")
				for _, text := range []string{c.want, m.Layers[0].Digest.String(), digest.FromBytes(tar).String()} {
					if err == nil || !strings.Contains(err.Error(), text) {
						t.Errorf("the error does not say %q: %v", text, err)
					}
				}
				if asked := reg.Asked("/blobs/" + m.Layers[0].Digest.String()); len(asked) != 1 {
					t.Errorf("requests: %v", asked)
				}
			})
		}
	}
}

// What a registry answers decides who is to act: the kubelet tries again after Unavailable and
// RegistryUnavailable, and a person has to act after the others. A registry in trouble must not get
// many requests.
func TestAnswersOfARegistry(t *testing.T) {
	for _, part := range []string{"/manifests/", "/blobs/"} {
		for name, c := range map[string]struct {
			code     int // 0: no answer
			after    string
			want     error
			reason   string
			text     string
			requests int // at most
		}{
			"401":           {code: 401, want: fault.Invalid, text: "unauthorized", requests: 2},
			"403":           {code: 403, want: fault.Invalid, text: "denied", requests: 1},
			"404":           {code: 404, want: fault.NotFound, text: "unknown", requests: 1},
			"429":           {code: 429, after: "0", reason: registry.RegistryUnavailable, text: "toomanyrequests", requests: 5}, // the library's
			"429, wait":     {code: 429, after: "2", reason: registry.RegistryUnavailable, text: "429", requests: 2},
			"429, for long": {code: 429, after: "3600", reason: registry.RegistryUnavailable, text: "429", requests: 1},
			"500":           {code: 500, reason: registry.RegistryUnavailable, text: "500", requests: 2},
			"503":           {code: 503, reason: registry.RegistryUnavailable, text: "503", requests: 2},
			"no answer":     {reason: registry.RegistryUnavailable, text: "1s", requests: 1},
		} {
			t.Run(name+part, func(t *testing.T) {
				reg := imagetest.NewRegistry(t)
				p := imagetest.NewPlace(t, reg)
				p.Trusting(image.Settings{Settings: registry.Settings{ProgressTimeout: time.Second}})
				img := imagetest.Build(t, "gzip", "a")
				reg.Push("app", "v1", img)
				reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
					if !strings.Contains(r.URL.Path, part) || r.Method == http.MethodHead {
						return false
					}
					if c.code == 0 {
						<-r.Context().Done()
						return true
					}
					w.Header().Set("Retry-After", c.after)
					http.Error(w, `{"errors":[{"code":"`+map[int]string{401: "UNAUTHORIZED", 403: "DENIED", 404: "MANIFEST_UNKNOWN", 429: "TOOMANYREQUESTS"}[c.code]+`"}]}`, c.code)
					return true
				})
				reg.Asked("")
				begin := time.Now()
				_, err := p.Store.Pull(t.Context(), reg.Host+"/app:v1", registry.Caller{})
				failedWith(t, err, c.want, c.reason)
				if err == nil || !strings.Contains(err.Error(), c.text) {
					t.Errorf("the error does not say %q: %v", c.text, err)
				}
				asked := reg.Asked(part)
				if asked = slices.DeleteFunc(asked, func(r string) bool { return strings.HasPrefix(r, "HEAD") }); len(asked) > c.requests {
					t.Errorf("requests: %v", asked)
				}
				t.Log(len(asked), time.Since(begin), err)
				reg.Intercept(nil)
				p.Pull(reg.Host + "/app:v1")
			})
		}
	}
}
