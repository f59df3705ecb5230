package image_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestPullFails has what can be wrong with a registry's answer. No image and no layer may
// be left, but perhaps, until the store is closed, what the next pull can use; and when the
// registry is right again, so is the pull.
func TestPullFails(t *testing.T) {
	layer := "/blobs/" // of the layer below; set when it is known
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for _, c := range []struct {
		name   string
		answer func(w http.ResponseWriter, r *http.Request, data []byte) (done bool)
		want   error
		reason string
	}{
		{name: "other content", want: fault.Unavailable, answer: func(w http.ResponseWriter, r *http.Request, data []byte) bool {
			other := slices.Clone(data)
			other[len(other)/2] ^= 1
			w.Write(other)
			return true
		}},
		{name: "another layer", want: fault.Unavailable, answer: func(w http.ResponseWriter, r *http.Request, data []byte) bool {
			other, _ := compress(t, "gzip", tarOf(t, map[string]string{"evil": "x"}))
			w.Write(other)
			return true
		}},
		{name: "truncated", want: fault.Unavailable, answer: func(w http.ResponseWriter, r *http.Request, data []byte) bool {
			w.Write(data[:len(data)/2])
			return true
		}},
		{name: "too long", want: fault.Unavailable, answer: func(w http.ResponseWriter, r *http.Request, data []byte) bool {
			w.Write(append(slices.Clone(data), "more"...))
			return true
		}},
		{name: "no such layer", want: fault.NotFound, answer: func(w http.ResponseWriter, r *http.Request, data []byte) bool {
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"errors":[{"code":"BLOB_UNKNOWN"}]}`)
			return true
		}},
		{name: "no such page", want: fault.NotFound, answer: func(w http.ResponseWriter, r *http.Request, data []byte) bool {
			http.NotFound(w, r)
			return true
		}},
		{name: "server error", reason: registry.RegistryUnavailable, answer: func(w http.ResponseWriter, r *http.Request, data []byte) bool {
			w.WriteHeader(http.StatusInternalServerError)
			return true
		}},
		{name: "silence before the layer", reason: registry.RegistryUnavailable, answer: func(w http.ResponseWriter, r *http.Request, data []byte) bool {
			<-r.Context().Done()
			return true
		}},
		{name: "silence within the layer", reason: registry.RegistryUnavailable, answer: func(w http.ResponseWriter, r *http.Request, data []byte) bool {
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			w.Write(data[:len(data)/2])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return true
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			reg := newRegistry(t)
			p := newPlace(t, reg)
			if strings.HasPrefix(c.name, "silence") {
				p.reopen(image.Options{Settings: image.Settings{Settings: registry.Settings{ProgressTimeout: time.Second}}})
			}
			img := build(t, "gzip", strings.Repeat("good", 1000), "too")
			reg.push("app", "v1", img)
			layer = "/blobs/" + digest.FromBytes(img.blobs[1]).String()
			reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
				return strings.HasSuffix(r.URL.Path, layer) && c.answer(w, r, img.blobs[1])
			})
			_, err := p.store.Pull(t.Context(), reg.host+"/app:v1", registry.Caller{})
			failedWith(t, err, c.want, c.reason)
			if n := p.layers(); n != 0 {
				t.Errorf("%d layers are left", n)
			}
			if images := p.store.List(); len(images) != 0 {
				t.Errorf("images are %v", images)
			}
			reg.intercept(nil)
			p.reopen(image.Options{})
			got := p.pull(reg.host + "/app:v1")
			if s := read(t, p.mount("k", got.ID), "top"); s != "too" {
				t.Errorf("file holds %q", s)
			}
		})
	}
	t.Run("manifest", func(t *testing.T) {
		reg := newRegistry(t)
		p := newPlace(t, reg)
		_, err := p.store.Pull(t.Context(), reg.host+"/nothing:v1", registry.Caller{})
		failedWith(t, err, fault.NotFound, "")
		_, err = p.store.Pull(t.Context(), "UPPER CASE", registry.Caller{})
		failedWith(t, err, fault.Invalid, "")
		_, err = p.store.Pull(t.Context(), closed.Addr().String()+"/x", registry.Caller{})
		failedWith(t, err, nil, registry.RegistryUnavailable)
		p.reopen(image.Options{Settings: image.Settings{Settings: registry.Settings{ProgressTimeout: time.Second}}})
		reg.intercept(func(w http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true })
		_, err = p.store.Pull(t.Context(), reg.host+"/nothing:v1", registry.Caller{})
		failedWith(t, err, nil, registry.RegistryUnavailable)
	})
}

func failedWith(t *testing.T, err, kind error, reason string) {
	t.Helper()
	if kind != nil && !errors.Is(err, kind) {
		t.Errorf("error is %v, want one of kind %v", err, kind)
	}
	p, ok := errors.AsType[*registry.PullError](err)
	if reason != "" && (!ok || p.Reason != reason || !strings.HasPrefix(err.Error(), reason+": ")) {
		t.Errorf("error is %v, want %s", err, reason)
	}
}

// A manifest that does not fit its config is refused before anything is unpacked.
func TestPullOfNonsense(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	for name, change := range map[string]func(b *built){
		"fewer layers": func(b *built) {
			b.manifest = []byte(strings.Replace(string(b.manifest), `"layers":[`, `"layers":[{"mediaType":"x","digest":"`+b.desc.Digest.String()+`","size":3},`, 1))
		},
		"schema 1": func(b *built) { b.desc.MediaType = "application/vnd.docker.distribution.manifest.v1+json" },
		"no JSON":  func(b *built) { b.manifest = []byte("{") },
	} {
		img := build(t, "gzip", "a")
		change(img)
		reg.push("app", "bad", img)
		if _, err := p.store.Pull(t.Context(), reg.host+"/app:bad", registry.Caller{}); err == nil {
			t.Errorf("%s: pulled", name)
		}
	}
	for name, layer := range map[string]v1.Descriptor{
		"no digest":      {Size: 3},
		"odd digest":     {Digest: "sha256:zz", Size: 3},
		"unknown digest": {Digest: "md5:0123456789abcdef0123456789abcdef", Size: 3},
		"no end":         {Digest: digest.FromString("x"), Size: -1},
	} {
		img := build(t, "gzip", "a")
		m := v1.Manifest{MediaType: v1.MediaTypeImageManifest, Config: v1.Descriptor{MediaType: v1.MediaTypeImageConfig, Digest: digest.FromBytes(img.config), Size: int64(len(img.config))}}
		m.SchemaVersion = 2
		layer.MediaType = v1.MediaTypeImageLayerGzip
		m.Layers = []v1.Descriptor{layer}
		img.manifest = mustJSON(t, m)
		reg.push("app", "odd", img)
		_, err := p.store.Pull(t.Context(), reg.host+"/app:odd", registry.Caller{})
		failedWith(t, err, fault.Invalid, "")
		if err == nil || !strings.Contains(err.Error(), "layer 0") {
			t.Errorf("%s: %v does not name the layer", name, err)
		}
	}
	wrong := build(t, "gzip", "a")
	wrong.config = []byte(strings.Replace(string(wrong.config), digest.FromBytes(wrong.plain[0]).String(), digest.FromString("other").String(), 1))
	m := v1.Manifest{MediaType: v1.MediaTypeImageManifest, Config: v1.Descriptor{MediaType: v1.MediaTypeImageConfig, Digest: digest.FromBytes(wrong.config), Size: int64(len(wrong.config))},
		Layers: []v1.Descriptor{{MediaType: v1.MediaTypeImageLayerGzip, Digest: digest.FromBytes(wrong.blobs[0]), Size: int64(len(wrong.blobs[0]))}}}
	m.SchemaVersion = 2
	wrong.manifest = mustJSON(t, m)
	reg.push("app", "wrong", wrong)
	_, err := p.store.Pull(t.Context(), reg.host+"/app:wrong", registry.Caller{})
	failedWith(t, err, fault.Unavailable, "")
	evil := buildOf(t, "gzip", v1.Image{}, tarOf(t, map[string]string{"../../evil": "x"}))
	reg.push("app", "evil", evil)
	_, err = p.store.Pull(t.Context(), reg.host+"/app:evil", registry.Caller{})
	failedWith(t, err, fault.Invalid, "")
	if n := p.layers() + len(p.names("staging")); n != 0 {
		t.Errorf("%d layers are left", n)
	}
}

// A layer that another pull unpacks is waited for; if that pull fails for reasons
// of its own, this one does the work.
func TestLayerOfFailedPull(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	shared := tarOf(t, map[string]string{"shared": strings.Repeat("s", 5000)})
	bad := buildOf(t, "gzip", v1.Image{}, shared, tarOf(t, map[string]string{"a": "bad"}))
	good := buildOf(t, "gzip", v1.Image{}, shared, tarOf(t, map[string]string{"a": "good"}))
	reg.push("bad", "latest", bad)
	reg.push("good", "latest", good)
	badBegun, goodWaits := make(chan struct{}), make(chan struct{})
	var badOnce, goodOnce sync.Once
	reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case strings.HasPrefix(r.URL.Path, "/v2/bad/") && strings.HasSuffix(r.URL.Path, digest.FromBytes(bad.blobs[0]).String()):
			badOnce.Do(func() { close(badBegun) })
			<-goodWaits
			io.WriteString(w, "not the layer")
			return true
		case strings.HasPrefix(r.URL.Path, "/v2/good/") && strings.HasSuffix(r.URL.Path, digest.FromBytes(good.blobs[1]).String()):
			goodOnce.Do(func() { close(goodWaits) })
		}
		return false
	})
	failed := make(chan error, 1)
	go func() {
		_, err := p.store.Pull(t.Context(), reg.host+"/bad", registry.Caller{})
		failed <- err
	}()
	<-badBegun
	if img := p.pull(reg.host + "/good"); img.ID != good.id() {
		t.Errorf("image is %s", img.ID)
	}
	failedWith(t, <-failed, fault.Unavailable, "")
}
