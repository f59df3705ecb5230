package image_test

import (
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/opencontainers/go-digest"
)

// A large image may take several pulls over a bad link: the next pull finds the layers that a
// failed one has completed.
func TestFailedPullKeepsItsLayers(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	img := imagetest.Build(t, "gzip", "one", "two", "three")
	reg.Push("app", "v1", img)
	var mu sync.Mutex
	fetched := make(map[string]int)
	broken := true
	others := make(chan struct{}) // closed when the other layers were sent
	last := digest.FromBytes(img.Blobs[2]).String()
	reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		_, blob, ok := strings.Cut(r.URL.Path, "/blobs/")
		if !ok {
			return false
		}
		mu.Lock()
		fetched[blob]++
		bad := blob == last && broken
		mu.Unlock()
		if bad {
			imagetest.Await(r, others)
			http.Error(w, "", http.StatusBadGateway)
		}
		return bad
	})
	go func() {
		for { // each of the others is unpacked when its record exists
			time.Sleep(time.Millisecond)
			done, _ := filepath.Glob(filepath.Join(p.Root(), "staging", "*", "*.json"))
			if len(done) == 2 || t.Context().Err() != nil {
				close(others)
				return
			}
		}
	}()
	_, err := p.Store.Pull(t.Context(), reg.Host+"/app:v1", registry.Caller{})
	failedWith(t, err, nil, registry.RegistryUnavailable)
	if len(p.Store.List()) != 0 || p.Layers() != 0 {
		t.Errorf("images %v, %d layers", p.Store.List(), p.Layers())
	}
	mu.Lock()
	broken = false
	mu.Unlock()
	got := p.Pull(reg.Host + "/app:v1")
	if s := imagetest.ReadFile(t, p.Mount("k", got.ID), "top"); s != "three" {
		t.Errorf("file holds %q", s)
	}
	for i, data := range img.Blobs[:2] {
		if n := fetched[digest.FromBytes(data).String()]; n != 1 {
			t.Errorf("layer %d was fetched %d times", i, n)
		}
	}
}

// Kept layers are the first to go when space is needed.
func TestKeptLayersGoWithAnImage(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	small, img := imagetest.Build(t, "gzip", "small"), imagetest.Build(t, "gzip", "one", "two")
	reg.Push("small", "v1", small)
	reg.Push("app", "v1", img)
	id := p.Pull(reg.Host + "/small:v1").ID
	one := digest.FromBytes(img.Blobs[0]).String()
	before := p.Store.FsInfo().Inodes
	reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, digest.FromBytes(img.Blobs[1]).String()) {
			return false
		}
		for p.Store.FsInfo().Inodes <= before && r.Context().Err() == nil { // until the other layer is there
			time.Sleep(time.Millisecond)
		}
		http.Error(w, "", http.StatusBadGateway)
		return true
	})
	_, err := p.Store.Pull(t.Context(), reg.Host+"/app:v1", registry.Caller{})
	failedWith(t, err, nil, registry.RegistryUnavailable)
	if p.Store.FsInfo().Inodes <= before {
		t.Errorf("nothing of %s was kept", one)
	}
	if err := p.Store.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if left := p.Store.FsInfo(); left.Inodes != 0 || left.UsedBytes != 0 {
		t.Errorf("left is %+v", left)
	}
	reg.Intercept(nil)
	p.Pull(reg.Host + "/app:v1")
}
