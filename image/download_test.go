package image_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// A connection that breaks or stalls every few megabytes must not keep a large layer from
// being fetched: what has arrived is kept.
func TestDownloadGoesOn(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	noise := make([]byte, 9<<20)
	rand.NewChaCha8([32]byte{}).Read(noise)
	img := imagetest.BuildOf(t, "plain", v1.Image{}, imagetest.TarOf(t, map[string]string{"noise": string(noise)}))
	reg.Push("app", "v1", img)
	data := img.Blobs[0]
	for name, test := range map[string]struct {
		after    int           // bytes
		progress time.Duration // what a busy machine takes may not seem a silence: what is under way is lost then
		stop     func(r *http.Request)
	}{
		"silence": {5 << 20, 3 * time.Second, func(r *http.Request) { <-r.Context().Done() }},
		"break":   {2 << 20, time.Minute, func(*http.Request) { panic(http.ErrAbortHandler) }}, // more often than is allowed without progress
	} {
		p.Trusting(image.Settings{Settings: registry.Settings{ProgressTimeout: test.progress}})
		var sent atomic.Int64
		reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, digest.FromBytes(data).String()) {
				return false
			}
			http.ServeContent(&shortWriter{ResponseWriter: w, left: test.after, sent: &sent, stop: func() { test.stop(r) }}, r, "", time.Time{}, bytes.NewReader(data))
			return true
		})
		got := p.Pull(reg.Host + "/app:v1")
		if root := p.Mount(name, got.ID); imagetest.ReadFile(t, root, "noise") != string(noise) {
			t.Errorf("%s: the content differs", name)
		}
		if n := sent.Load(); n > int64(len(data))+2<<20 {
			t.Errorf("%s: %d bytes were sent for %d", name, n, len(data))
		}
		if err := p.Store.RootFS().Unmount(t.Context(), name, true); err != nil {
			t.Error(err)
		}
		if err := p.Store.Remove(t.Context(), got.ID); err != nil {
			t.Error(err)
		}
	}
}

// A registry may be unable to send a part of a layer, or send another part than requested. Then the
// layer is sent again from its start, and the missing part is taken from that.
func TestDownloadGoesOnWithoutRanges(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	noise := make([]byte, 3<<20)
	rand.NewChaCha8([32]byte{}).Read(noise)
	img := imagetest.BuildOf(t, "plain", v1.Image{}, imagetest.TarOf(t, map[string]string{"noise": string(noise)}))
	reg.Push("app", "v1", img)
	data := img.Blobs[0]
	for name, answer := range map[string]func(w http.ResponseWriter){
		"416":   func(w http.ResponseWriter) { http.Error(w, "", http.StatusRequestedRangeNotSatisfiable) },
		"403":   func(w http.ResponseWriter) { http.Error(w, "", http.StatusForbidden) },
		"400":   func(w http.ResponseWriter) { http.Error(w, "", http.StatusBadRequest) },
		"501":   func(w http.ResponseWriter) { http.Error(w, "", http.StatusNotImplemented) },
		"whole": func(w http.ResponseWriter) { w.Write(data) },
		"another part": func(w http.ResponseWriter) {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", len(data)-1, len(data)))
			w.Header().Set("Content-Type", "application/octet-stream")
			w.WriteHeader(http.StatusPartialContent)
			w.Write(data)
		},
		"a page": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(http.StatusPartialContent)
			w.Write([]byte("<html>Log in first.</html>"))
		},
	} {
		var broken atomic.Bool
		reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			switch {
			case !strings.HasSuffix(r.URL.Path, digest.FromBytes(data).String()):
				return false
			case r.Header.Get("Range") != "":
				answer(w)
			case broken.CompareAndSwap(false, true):
				w.Header().Set("Content-Length", fmt.Sprint(len(data)))
				w.Write(data[:1<<20])
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			default:
				w.Write(data)
			}
			return true
		})
		got, err := p.Store.Pull(t.Context(), reg.Host+"/app:v1", registry.Caller{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if root := p.Mount("x", got.ID); imagetest.ReadFile(t, root, "noise") != string(noise) {
			t.Errorf("%s: the content differs", name)
		}
		if err := p.Store.RootFS().Unmount(t.Context(), "x", true); err != nil {
			t.Error(err)
		}
		if err := p.Store.Remove(t.Context(), got.ID); err != nil {
			t.Error(err)
		}
	}
}

// A shortWriter stops after some bytes of a body.
type shortWriter struct {
	http.ResponseWriter
	left int
	sent *atomic.Int64
	stop func()
}

// Write implements io.Writer, and calls stop after w.left bytes.
func (w *shortWriter) Write(p []byte) (int, error) {
	p = p[:min(len(p), w.left)]
	n, err := w.ResponseWriter.Write(p)
	w.left -= n
	w.sent.Add(int64(n))
	if w.left == 0 {
		w.ResponseWriter.(http.Flusher).Flush()
		w.stop()
	}
	return n, err
}

// A request is repeated when a registry is restarted, or is overloaded for a moment.
func TestPassingFailureIsTriedAgain(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	for name, fail := range map[string]struct {
		times int32
		how   func(w http.ResponseWriter)
	}{
		"overloaded": {1, func(w http.ResponseWriter) { http.Error(w, "a moment", http.StatusServiceUnavailable) }},
		// net/http itself repeats the first request, if its connection was used before.
		"restarted": {2, func(http.ResponseWriter) { panic(http.ErrAbortHandler) }},
	} {
		img := imagetest.Build(t, "gzip", name)
		reg.Intercept(nil)
		reg.PushIndex("app", "v1", img)
		parts := []string{"/manifests/v1", "/manifests/" + img.Desc.Digest.String(), "/blobs/" + img.ID(), "/blobs/" + digest.FromBytes(img.Blobs[0]).String()}
		var failed [4]atomic.Int32
		reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			for i, part := range parts {
				if strings.HasSuffix(r.URL.Path, part) && failed[i].Add(1) <= fail.times {
					fail.how(w)
					return true
				}
			}
			return false
		})
		if _, err := p.Store.Pull(t.Context(), reg.Host+"/app:v1", registry.Caller{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for i, part := range parts {
			if failed[i].Load() <= fail.times {
				t.Errorf("%s: %s: nothing failed", name, part)
			}
		}
	}
}

// A foreign layer, which its maker does not let registries distribute, may still be in a registry,
// for nodes that reach nothing else.
func TestForeignLayerInRegistry(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	for kind, manifest := range map[string]string{
		"application/vnd.oci.image.layer.nondistributable.v1.tar+gzip": v1.MediaTypeImageManifest,
		"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip":    "application/vnd.docker.distribution.manifest.v2+json",
	} {
		img := imagetest.Build(t, "gzip", kind)
		config := v1.MediaTypeImageConfig
		if manifest != v1.MediaTypeImageManifest {
			config = "application/vnd.docker.container.image.v1+json"
		}
		img.Manifest = []byte(strings.NewReplacer(
			v1.MediaTypeImageLayerGzip+`"`, kind+`","urls":["http://127.0.0.1:1/layer"]`,
			v1.MediaTypeImageManifest, manifest, v1.MediaTypeImageConfig, config,
		).Replace(string(img.Manifest)))
		img.Desc.MediaType = manifest
		reg.Push("app", "v1", img)
		if got := p.Pull(reg.Host + "/app:v1"); got.ID != img.ID() {
			t.Errorf("%s: image is %s", kind, got.ID)
		}
	}
}
