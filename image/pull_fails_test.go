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
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestPullFails lists faults in a registry's responses. No image and no layer may be left, except
// layers that the next pull can use until the store is closed, and the pull succeeds once the
// registry works again.
func TestPullFails(t *testing.T) {
	layer := "/blobs/" // of the only layer; set when its digest is known
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
			other, _ := imagetest.Compress(t, "gzip", imagetest.TarOf(t, map[string]string{"evil": "x"}))
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
			reg := imagetest.NewRegistry(t)
			p := imagetest.NewPlace(t, reg)
			if strings.HasPrefix(c.name, "silence") {
				p.Reopen(image.Options{Settings: image.Settings{Settings: registry.Settings{ProgressTimeout: time.Second}}})
			}
			img := imagetest.Build(t, "gzip", strings.Repeat("good", 1000), "too")
			reg.Push("app", "v1", img)
			layer = "/blobs/" + digest.FromBytes(img.Blobs[1]).String()
			reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				return strings.HasSuffix(r.URL.Path, layer) && c.answer(w, r, img.Blobs[1])
			})
			_, err := p.Store.Pull(t.Context(), reg.Host+"/app:v1", registry.Caller{})
			failedWith(t, err, c.want, c.reason)
			if n := p.Layers(); n != 0 {
				t.Errorf("%d layers are left", n)
			}
			if images := p.Store.List(); len(images) != 0 {
				t.Errorf("images are %v", images)
			}
			reg.Intercept(nil)
			p.Reopen(image.Options{})
			got := p.Pull(reg.Host + "/app:v1")
			if s := imagetest.ReadFile(t, p.Mount("k", got.ID), "top"); s != "too" {
				t.Errorf("file holds %q", s)
			}
		})
	}
	t.Run("manifest", func(t *testing.T) {
		reg := imagetest.NewRegistry(t)
		p := imagetest.NewPlace(t, reg)
		_, err := p.Store.Pull(t.Context(), reg.Host+"/nothing:v1", registry.Caller{})
		failedWith(t, err, fault.NotFound, "")
		_, err = p.Store.Pull(t.Context(), "UPPER CASE", registry.Caller{})
		failedWith(t, err, fault.Invalid, "")
		_, err = p.Store.Pull(t.Context(), closed.Addr().String()+"/x", registry.Caller{})
		failedWith(t, err, nil, registry.RegistryUnavailable)
		p.Reopen(image.Options{Settings: image.Settings{Settings: registry.Settings{ProgressTimeout: time.Second}}})
		reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true })
		_, err = p.Store.Pull(t.Context(), reg.Host+"/nothing:v1", registry.Caller{})
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

// A manifest that does not match its config is rejected before anything is unpacked.
func TestPullOfNonsense(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	for name, change := range map[string]func(b *imagetest.Built){
		"fewer layers": func(b *imagetest.Built) {
			b.Manifest = []byte(strings.Replace(string(b.Manifest), `"layers":[`, `"layers":[{"mediaType":"x","digest":"`+b.Desc.Digest.String()+`","size":3},`, 1))
		},
		"schema 1": func(b *imagetest.Built) { b.Desc.MediaType = "application/vnd.docker.distribution.manifest.v1+json" },
		"no JSON":  func(b *imagetest.Built) { b.Manifest = []byte("{") },
	} {
		img := imagetest.Build(t, "gzip", "a")
		change(img)
		reg.Push("app", "bad", img)
		if _, err := p.Store.Pull(t.Context(), reg.Host+"/app:bad", registry.Caller{}); err == nil {
			t.Errorf("%s: pulled", name)
		}
	}
	for name, layer := range map[string]v1.Descriptor{
		"no digest":      {Size: 3},
		"odd digest":     {Digest: "sha256:zz", Size: 3},
		"unknown digest": {Digest: "md5:0123456789abcdef0123456789abcdef", Size: 3},
		"no end":         {Digest: digest.FromString("x"), Size: -1},
	} {
		img := imagetest.Build(t, "gzip", "a")
		m := v1.Manifest{MediaType: v1.MediaTypeImageManifest, Config: v1.Descriptor{MediaType: v1.MediaTypeImageConfig, Digest: digest.FromBytes(img.Config), Size: int64(len(img.Config))}}
		m.SchemaVersion = 2
		layer.MediaType = v1.MediaTypeImageLayerGzip
		m.Layers = []v1.Descriptor{layer}
		img.Manifest = imagetest.MustJSON(t, m)
		reg.Push("app", "odd", img)
		_, err := p.Store.Pull(t.Context(), reg.Host+"/app:odd", registry.Caller{})
		failedWith(t, err, fault.Invalid, "")
		if err == nil || !strings.Contains(err.Error(), "layer 0") {
			t.Errorf("%s: %v does not name the layer", name, err)
		}
	}
	wrong := imagetest.Build(t, "gzip", "a")
	wrong.Config = []byte(strings.Replace(string(wrong.Config), digest.FromBytes(wrong.Plain[0]).String(), digest.FromString("other").String(), 1))
	m := v1.Manifest{MediaType: v1.MediaTypeImageManifest, Config: v1.Descriptor{MediaType: v1.MediaTypeImageConfig, Digest: digest.FromBytes(wrong.Config), Size: int64(len(wrong.Config))},
		Layers: []v1.Descriptor{{MediaType: v1.MediaTypeImageLayerGzip, Digest: digest.FromBytes(wrong.Blobs[0]), Size: int64(len(wrong.Blobs[0]))}}}
	m.SchemaVersion = 2
	wrong.Manifest = imagetest.MustJSON(t, m)
	reg.Push("app", "wrong", wrong)
	_, err := p.Store.Pull(t.Context(), reg.Host+"/app:wrong", registry.Caller{})
	failedWith(t, err, fault.Invalid, "")
	evil := imagetest.BuildOf(t, "gzip", v1.Image{}, imagetest.TarOf(t, map[string]string{"../../evil": "x"}))
	reg.Push("app", "evil", evil)
	_, err = p.Store.Pull(t.Context(), reg.Host+"/app:evil", registry.Caller{})
	failedWith(t, err, fault.Invalid, "")
	if n := p.Layers() + len(p.Names("staging")); n != 0 {
		t.Errorf("%d layers are left", n)
	}
}

// A pull waits for a layer that another pull is unpacking, and unpacks it itself if that
// one fails for another reason.
func TestLayerOfFailedPull(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	shared := imagetest.TarOf(t, map[string]string{"shared": strings.Repeat("s", 5000)})
	bad := imagetest.BuildOf(t, "gzip", v1.Image{}, shared, imagetest.TarOf(t, map[string]string{"a": "bad"}))
	good := imagetest.BuildOf(t, "gzip", v1.Image{}, shared, imagetest.TarOf(t, map[string]string{"a": "good"}))
	reg.Push("bad", "latest", bad)
	reg.Push("good", "latest", good)
	badBegun, goodWaits := make(chan struct{}), make(chan struct{})
	var badOnce, goodOnce sync.Once
	reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case strings.HasPrefix(r.URL.Path, "/v2/bad/") && strings.HasSuffix(r.URL.Path, digest.FromBytes(bad.Blobs[0]).String()):
			badOnce.Do(func() { close(badBegun) })
			imagetest.Await(r, goodWaits)
			io.WriteString(w, "not the layer")
			return true
		case strings.HasPrefix(r.URL.Path, "/v2/good/") && strings.HasSuffix(r.URL.Path, digest.FromBytes(good.Blobs[1]).String()):
			goodOnce.Do(func() { close(goodWaits) })
		}
		return false
	})
	failed := make(chan error, 1)
	go func() {
		_, err := p.Store.Pull(t.Context(), reg.Host+"/bad", registry.Caller{})
		failed <- err
	}()
	<-badBegun
	if img := p.Pull(reg.Host + "/good"); img.ID != good.ID() {
		t.Errorf("image is %s", img.ID)
	}
	failedWith(t, <-failed, fault.Unavailable, "")
}
