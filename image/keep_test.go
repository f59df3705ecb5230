package image_test

import (
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/image/registry"
	"github.com/opencontainers/go-digest"
)

// A large image over a bad link comes bit by bit: the layers that a failed pull had
// finished are there for the next.
func TestFailedPullKeepsItsLayers(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	img := build(t, "gzip", "one", "two", "three")
	reg.push("app", "v1", img)
	var mu sync.Mutex
	fetched := make(map[string]int)
	broken := true
	others := make(chan struct{}) // closed when the others were sent
	last := digest.FromBytes(img.blobs[2]).String()
	reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		_, blob, ok := strings.Cut(r.URL.Path, "/blobs/")
		if !ok {
			return false
		}
		mu.Lock()
		fetched[blob]++
		bad := blob == last && broken
		mu.Unlock()
		if bad {
			<-others
			http.Error(w, "", http.StatusBadGateway)
		}
		return bad
	})
	go func() {
		for { // each of the others is unpacked when its record is written
			time.Sleep(time.Millisecond)
			done, _ := filepath.Glob(filepath.Join(p.root(), "staging", "*", "layer.json"))
			if len(done) == 2 || t.Context().Err() != nil {
				close(others)
				return
			}
		}
	}()
	_, err := p.store.Pull(t.Context(), reg.host+"/app:v1", registry.Caller{})
	failedWith(t, err, nil, registry.RegistryUnavailable)
	if len(p.store.List()) != 0 || p.layers() != 0 {
		t.Errorf("images %v, %d layers", p.store.List(), p.layers())
	}
	mu.Lock()
	broken = false
	mu.Unlock()
	got := p.pull(reg.host + "/app:v1")
	if s := read(t, p.mount("k", got.ID), "top"); s != "three" {
		t.Errorf("file holds %q", s)
	}
	for i, data := range img.blobs[:2] {
		if n := fetched[digest.FromBytes(data).String()]; n != 1 {
			t.Errorf("layer %d was fetched %d times", i, n)
		}
	}
}

// What is kept is the first to go when somebody wants space.
func TestKeptLayersGoWithAnImage(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	small, img := build(t, "gzip", "small"), build(t, "gzip", "one", "two")
	reg.push("small", "v1", small)
	reg.push("app", "v1", img)
	id := p.pull(reg.host + "/small:v1").ID
	one := digest.FromBytes(img.blobs[0]).String()
	reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, digest.FromBytes(img.blobs[1]).String()) {
			return false
		}
		for p.store.FsInfo().Inodes < 4 && r.Context().Err() == nil { // until the other is there
			time.Sleep(time.Millisecond)
		}
		http.Error(w, "", http.StatusBadGateway)
		return true
	})
	before := p.store.FsInfo().Inodes
	if before >= 4 {
		t.Fatalf("%d inodes before", before)
	}
	_, err := p.store.Pull(t.Context(), reg.host+"/app:v1", registry.Caller{})
	failedWith(t, err, nil, registry.RegistryUnavailable)
	if p.store.FsInfo().Inodes <= before {
		t.Errorf("nothing of %s was kept", one)
	}
	if err := p.store.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if left := p.store.FsInfo(); left.Inodes != 0 || left.UsedBytes != 0 {
		t.Errorf("left is %+v", left)
	}
	reg.intercept(nil)
	p.pull(reg.host + "/app:v1")
}
