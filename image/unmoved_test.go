package image_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/opencontainers/go-digest"
)

// Docker Hub limits the manifests that it sends, and imagePullPolicy Always pulls at each start of a
// container. To learn that a tag has not moved, a HEAD request is enough.
func TestPullOfUnmovedTagCostsNoManifest(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	asked := func(want ...string) {
		t.Helper()
		got := slices.DeleteFunc(reg.Asked(""), func(s string) bool { return strings.HasSuffix(s, "/v2/") })
		if !slices.Equal(got, want) {
			t.Errorf("asked for %v, want %v", got, want)
		}
	}
	img := imagetest.Build(t, "gzip", "one")
	for name, push := range map[string]func(tag string){
		"image":    func(tag string) { reg.Push("image", tag, img) },
		"index":    func(tag string) { reg.PushIndex("index", tag, img) },
		"artifact": func(tag string) { reg.PushArtifact("artifact", tag, "file", "content") },
	} {
		push("v1")
		ref, head := reg.Host+"/"+name+":v1", "HEAD /v2/"+name+"/manifests/v1"
		first := p.Pull(ref)
		reg.Asked("")
		if got := p.Pull(ref); got.ID != first.ID || !slices.Equal(got.Tags, first.Tags) {
			t.Errorf("image is %+v, want %+v", got, first)
		}
		asked(head)
		p.Reopen(image.Options{})
		p.Pull(ref)
		asked(head)
	}

	// A tag that has moved gets the other image, even if that is there too.
	next := imagetest.Build(t, "gzip", "two")
	reg.Push("image", "v1", next)
	for _, img := range []*imagetest.Built{next, img} {
		top := reg.Push("image", "v1", img)
		for range 2 {
			got := p.Pull(reg.Host + "/image:v1")
			if got.ID != img.ID() || !slices.Contains(got.Tags, reg.Host+"/image:v1") || !slices.Contains(got.Digests, reg.Host+"/image@"+top.String()) {
				t.Errorf("image is %+v, want %s", got, img.ID())
			}
		}
	}
	// That an image has the tag here says nothing about the registry.
	if _, err := p.Store.Tag(next.ID(), reg.Host+"/image:local"); err != nil {
		t.Fatal(err)
	}
	_, err := p.Store.Pull(t.Context(), reg.Host+"/image:local", registry.Caller{})
	failedWith(t, err, fault.NotFound, "")

	// The registry decides about each caller.
	reg.Guard("image")
	for range 2 {
		_, err := p.Store.Pull(t.Context(), reg.Host+"/image:v1", registry.Caller{Auth: somebody})
		failedWith(t, err, fault.Invalid, "")
		reg.Asked("")
		if _, err := p.Store.Pull(t.Context(), reg.Host+"/image:v1", registry.Caller{Auth: me}); err != nil {
			t.Error(err)
		}
		asked("HEAD /v2/image/manifests/v1")
	}
}

// A registry that does not tell the digest in answer to a HEAD request, or not a usable one, is
// sent a GET request, as ever.
func TestPullOfUnmovedTagWithoutDigest(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	p.Trusting(image.Settings{Settings: registry.Settings{ProgressTimeout: time.Second}})
	img := imagetest.Build(t, "gzip", "one")
	reg.Push("app", "v1", img)
	p.Pull(reg.Host + "/app:v1")
	for name, answer := range map[string]func(w http.ResponseWriter, r *http.Request){
		"405":       func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusMethodNotAllowed) },
		"404":       http.NotFound,
		"401":       func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
		"503":       func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"no digest": func(w http.ResponseWriter, r *http.Request) {},
		"no form":   func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Docker-Content-Digest", "x") },
		"another": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Docker-Content-Digest", digest.FromString("x").String())
		},
		"closes": func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) },
		"hangs":  func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		var heads atomic.Int32
		reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodHead {
				return false
			}
			heads.Add(1)
			answer(w, r)
			return true
		})
		reg.Asked("")
		if got := p.Pull(reg.Host + "/app:v1"); got.ID != img.ID() {
			t.Errorf("%s: image is %s", name, got.ID)
		}
		if got := reg.Asked("GET /v2/app/manifests/v1"); heads.Load() == 0 || len(got) != 1 {
			t.Errorf("%s: asked for %v", name, got)
		}
		if name == "hangs" { // once is enough for a while
			p.Pull(reg.Host + "/app:v1")
			if heads.Load() != 1 {
				t.Errorf("asked %d times for the digest", heads.Load())
			}
			p.Trusting(image.Settings{Settings: registry.Settings{ProgressTimeout: time.Second}})
		}
	}

	// If the registry limits requests, there must not be more of them.
	var limited []string
	reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/manifests/") {
			return false
		}
		limited = append(limited, r.Method)
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	})
	_, err := p.Store.Pull(t.Context(), reg.Host+"/app:v1", registry.Caller{})
	failedWith(t, err, nil, registry.RegistryUnavailable)
	if len(limited) != 5 || err == nil || !strings.Contains(err.Error(), "429") { // as many as the library sends
		t.Errorf("asked by %v, error is %v", limited, err)
	}
	reg.Intercept(nil)
	p.Pull(reg.Host + "/app:v1")
}

// Mirrors are asked as ever; then the registry itself is asked for the digest.
func TestPullOfUnmovedTagWithMirror(t *testing.T) {
	mirror, origin := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t)
	p.Mirrored(origin, mirror)
	img := imagetest.Build(t, "gzip", "one")
	origin.Push("app", "v1", img)
	ref := origin.Host + "/app:v1"
	p.Pull(ref)
	origin.Asked("")
	p.Pull(ref)
	if got := origin.Asked("/app/"); !slices.Equal(got, []string{"HEAD /v2/app/manifests/v1"}) {
		t.Errorf("asked for %v", got)
	}
	next := imagetest.Build(t, "gzip", "two")
	mirror.Push("app", "v1", next)
	if got := p.Pull(ref); got.ID != next.ID() {
		t.Errorf("image is %s, want the mirror's, %s", got.ID, next.ID())
	}
	// Where registries.conf says that the registry is elsewhere, its name is not an address.
	p.Configure(fmt.Sprintf("[[registry]]\nprefix = \"registry.invalid\"\nlocation = %q\ninsecure = true\n", origin.Host))
	for range 2 {
		if got := p.Pull("registry.invalid/app:v1"); got.ID != img.ID() {
			t.Errorf("image is %s, want %s", got.ID, img.ID())
		}
	}
}

// Pulls of an unmoved tag are joined, too.
func TestPullsOfUnmovedTagJoin(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "v1", imagetest.Build(t, "gzip", "one"))
	ref := reg.Host + "/app:v1"
	want := p.Pull(ref)
	asked, goOn := make(chan struct{}, 12), make(chan struct{})
	reg.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodHead {
			asked <- struct{}{}
			imagetest.Await(r, goOn)
		}
		return false
	})
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			got, err := p.Store.Pull(t.Context(), ref, registry.Caller{Pod: fmt.Sprint("default/", i)})
			if err != nil || got.ID != want.ID {
				t.Errorf("image is %s (err %v)", got.ID, err)
			}
		})
	}
	<-asked
	for list := p.Store.Pulls(); len(list) == 0 || len(list[0].For) < 12; list = p.Store.Pulls() {
		time.Sleep(time.Millisecond)
	}
	close(goOn)
	all.Wait()
	if len(asked) != 0 {
		t.Errorf("asked %d times more", len(asked))
	}
}

// Signatures that have come since the last pull are fetched, if any namespace's policy wants them.
func TestPullOfUnmovedTagFetchesSignatures(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	s := imagetest.NewSigner(t)
	p.Trusting(image.Settings{})
	imagetest.WriteFile(t, filepath.Join(p.Dir, "policies", "strict.json"), signedOnly(t, s, reg.Host))
	ref := reg.Host + "/app:v1"
	top := reg.Push("app", "v1", imagetest.Build(t, "gzip", "one"))
	img := p.Pull(ref)
	refused(t, "unsigned", p.Store.Allowed(t.Context(), "strict", ref, img.ID))
	reg.Sign(s, "app", top, ref)
	p.Pull(ref) // for the node
	if err := p.Store.Allowed(t.Context(), "strict", ref, img.ID); err != nil {
		t.Error(err)
	}
	reg.Asked("")
	p.Pull(ref)
	if got := reg.Asked("GET /v2/app/manifests/"); len(got) != 0 {
		t.Errorf("asked for %v", got)
	}
}
