package image_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
)

// A directory of files behind a web server also works as a registry, except for the media types:
// the server derives them from the files' names, or sends none. The documents themselves have them.
func TestMediaTypeOfSimpleRegistry(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	one, two := imagetest.Build(t, "gzip", "one"), imagetest.Build(t, "gzip", "two")
	reg.Push("app", "one", one)
	reg.PushIndex("app", "two", two)
	for _, kind := range []string{"application/json", "", "text/plain; charset=utf-8", "application/octet-stream"} {
		reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			w.Header()["Content-Type"] = nil // none, not one that the server detects
			if kind != "" {
				w.Header().Set("Content-Type", kind)
			}
			switch path := r.URL.Path; {
			case strings.HasSuffix(path, "/one"):
				w.Write(one.Manifest)
			case strings.HasSuffix(path, "/two"):
				io.WriteString(w, `{"schemaVersion":2,"manifests":[`+string(imagetest.MustJSON(t, two.Desc))+`]}`)
			default:
				w.Write(two.Manifest)
			}
			return true
		})
		for tag, img := range map[string]*imagetest.Built{"one": one, "two": two} {
			got, err := p.Store.Pull(t.Context(), reg.Host+"/app:"+tag, registry.Caller{})
			if err != nil || got.ID != img.ID() {
				t.Errorf("%q: image %s is %q: %v", kind, tag, got.ID, err)
			}
		}
	}
	reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/manifests/") {
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, "<html>Log in first.</html>")
			return true
		}
		return false
	})
	_, err := p.Store.Pull(t.Context(), reg.Host+"/app:one", registry.Caller{})
	failedWith(t, err, fault.Unavailable, "")
	if err == nil || !strings.Contains(err.Error(), "text/html") {
		t.Errorf("error is %v, and does not say what came", err)
	}
}

// An image in Docker's schema 1 is reported as such, whatever its media type.
func TestSchema1IsNamed(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	img := imagetest.Build(t, "gzip", "a")
	img.Manifest = []byte(`{"schemaVersion":1,"name":"app","tag":"old","architecture":"amd64","fsLayers":[],"history":[]}`)
	for _, kind := range []string{"application/vnd.docker.distribution.manifest.v1+json", "application/json"} {
		img.Desc.MediaType = kind
		reg.Push("app", "old", img)
		_, err := p.Store.Pull(t.Context(), reg.Host+"/app:old", registry.Caller{})
		failedWith(t, err, fault.Invalid, "")
		if err == nil || !strings.Contains(err.Error(), "schema 1") {
			t.Errorf("%s: error is %v", kind, err)
		}
	}
}
