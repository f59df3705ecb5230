package image_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/opencontainers/go-digest"
)

// Concurrent pulls of one image are one pull, and a layer that two images share is pulled
// once.
func TestPullsJoin(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	base := strings.Repeat("base", 10)
	a, b := imagetest.Build(t, "gzip", base, "a"), imagetest.Build(t, "gzip", base, "b")
	reg.Push("a", "latest", a)
	reg.Push("b", "latest", b)
	reg.Asked("")

	// The shared layer is held back until both pulls are under way.
	common := "/blobs/" + digest.FromBytes(a.Blobs[0]).String()
	both := make(chan struct{})
	var others sync.WaitGroup
	others.Add(2)
	go func() { others.Wait(); close(both) }()
	var once [2]sync.Once
	reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		for i, img := range []*imagetest.Built{a, b} {
			if strings.HasSuffix(r.URL.Path, digest.FromBytes(img.Blobs[1]).String()) {
				once[i].Do(others.Done)
			}
		}
		if strings.HasSuffix(r.URL.Path, common) {
			imagetest.Await(r, both)
		}
		return false
	})
	var all sync.WaitGroup
	for i := range 12 {
		ref := reg.Host + []string{"/a", "/b"}[i%2]
		want := []string{a.ID(), b.ID()}[i%2]
		all.Go(func() {
			img, err := p.Store.Pull(t.Context(), ref, registry.Caller{})
			if err != nil || img.ID != want {
				t.Errorf("pull of %s: %s (err %v)", ref, img.ID, err)
			}
		})
	}
	all.Wait()
	if got := reg.Asked("/blobs/"); len(got) != 6 { // two configs, three layers, and a HEAD for the shared one in the other repository
		t.Errorf("fetched %v", got)
	}
}

// A registry that gives a layer slowly, or something else in its place, does not hold up the pull of
// an image that has the layer, too, from another registry. Its own pull then has no need of it.
func TestPullDoesNotWaitForAnotherRegistry(t *testing.T) {
	slow, reg := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, slow, reg)
	img := imagetest.Build(t, "gzip", "base", "own")
	blob := digest.FromBytes(img.Blobs[0]).String()
	slow.Push("app", "latest", img)
	reg.Push("app", "latest", img)
	asked, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	slow.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, blob) {
			once.Do(func() { close(asked) })
			imagetest.Await(r, goOn)
		}
		return false
	})
	first := make(chan error, 1)
	go func() {
		_, err := p.Store.Pull(t.Context(), slow.Host+"/app", registry.Caller{})
		first <- err
	}()
	<-asked
	second, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got, err := p.Store.Pull(second, reg.Host+"/app", registry.Caller{})
	if err != nil || got.ID != img.ID() {
		t.Errorf("image is %s (err %v)", got.ID, err)
	}
	close(goOn)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

// A pull with the credentials that a credential provider has left for one namespace is not the
// pull of another namespace, which has none.
func TestPullWithProvidedCredentialsIsNotShared(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	p.Trusting(image.Settings{})
	img := imagetest.Build(t, "gzip", "secret")
	reg.Push("private", "latest", img)
	imagetest.WriteFile(t, filepath.Join(p.Dir, "auth", fmt.Sprintf("owner-%x.json", sha256.Sum256([]byte(reg.Host+"/private")))),
		`{"auths":{"`+reg.Host+`":{"auth":"bWU6cGFzcw=="}}}`)
	begun, goOn := make(chan struct{}), make(chan struct{})
	reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, digest.FromBytes(img.Blobs[0]).String()) {
			close(begun)
			imagetest.Await(r, goOn)
		}
		if user, _, _ := r.BasicAuth(); user == "me" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	pull := func(namespace string) chan error {
		done := make(chan error, 1)
		go func() {
			_, err := p.Store.Pull(t.Context(), reg.Host+"/private", registry.Caller{Namespace: namespace, Pod: namespace + "/pod"})
			done <- err
		}()
		return done
	}
	owner := pull("owner")
	<-begun
	other := pull("other")
	joined := func() bool {
		return slices.ContainsFunc(p.Store.Pulls(), func(p pulls.Pull) bool { return len(p.For) > 1 })
	}
	for len(other) == 0 && !joined() {
		time.Sleep(time.Millisecond)
	}
	close(goOn)
	if err := <-other; !errors.Is(err, fault.Invalid) {
		t.Errorf("without credentials: error is %v, want one of kind %v", err, fault.Invalid)
	}
	if err := <-owner; err != nil {
		t.Error(err)
	}
}

// A caller that gives up does not affect the others; the last one to give up ends the pull.
func TestPullAbandoned(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	img := imagetest.Build(t, "gzip", strings.Repeat("x", 1000), "y")
	reg.Push("app", "latest", img)
	begun, goOn := make(chan struct{}, 10), make(chan struct{})
	ended := make(chan struct{}, 10)
	reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, digest.FromBytes(img.Blobs[0]).String()) {
			return false
		}
		begun <- struct{}{}
		select {
		case <-goOn:
			return false
		case <-r.Context().Done():
			ended <- struct{}{}
			return true
		}
	})
	pull := func(ctx context.Context) chan error {
		done := make(chan error, 1)
		go func() {
			_, err := p.Store.Pull(ctx, reg.Host+"/app", registry.Caller{})
			done <- err
		}()
		return done
	}

	one, cancelOne := context.WithCancel(t.Context())
	first := pull(one)
	<-begun
	two, cancelTwo := context.WithCancel(t.Context())
	second := pull(two)
	cancelOne()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("first: %v", err)
	}
	cancelTwo()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("second: %v", err)
	}
	<-ended

	// The next pull starts over.
	third := pull(t.Context())
	<-begun
	close(goOn)
	if err := <-third; err != nil {
		t.Errorf("third: %v", err)
	}
}
