package image_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/crisp-cri/crisp/image/imagetest"
	"github.com/crisp-cri/crisp/image/registry"
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
			<-both
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
