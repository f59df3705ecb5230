package image_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
)

// A tag can be given to one image and moved to another, and is kept over a restart.
func TestTag(t *testing.T) {
	p := imagetest.NewPlace(t)
	ids := map[string]string{}
	for _, name := range []string{"one", "two"} {
		img := imagetest.Build(t, "plain", name)
		if _, err := p.Store.Load(t.Context(), bytes.NewReader(ociArchive(t, img, map[string]string{"org.opencontainers.image.ref.name": "example.com/" + name + ":1"}))); err != nil {
			t.Fatal(err)
		}
		ids[name] = img.ID()
	}
	for _, name := range []string{"one", "two"} {
		img, err := p.Store.Tag("example.com/"+name+":1", "mine:1")
		if want := []string{"docker.io/library/mine:1", "example.com/" + name + ":1"}; err != nil || !slices.Equal(img.Tags, want) {
			t.Errorf("%s has the tags %v, want %v; %v", name, img.Tags, want, err)
		}
		if img, err := p.Store.Get("mine:1"); err != nil || img.ID != ids[name] {
			t.Errorf("mine:1 is %s, want %s; %v", img.ID, ids[name], err)
		}
	}
	if _, err := p.Store.Tag("nothing:1", "mine:2"); !errors.Is(err, fault.NotFound) {
		t.Errorf("tag of a missing image: %v", err)
	}
	for _, bad := range []string{"", "UPPER", "mine@sha256:" + ids["one"][7:]} {
		if _, err := p.Store.Tag(ids["one"], bad); !errors.Is(err, fault.Invalid) {
			t.Errorf("the tag %q: %v", bad, err)
		}
	}
	p.Reopen(image.Options{})
	if img, err := p.Store.Get("mine:1"); err != nil || img.ID != ids["two"] {
		t.Errorf("after a restart, mine:1 is %s, want %s; %v", img.ID, ids["two"], err)
	}
	if img, err := p.Store.Get(ids["one"]); err != nil || !slices.Equal(img.Tags, []string{"example.com/one:1"}) {
		t.Errorf("one has the tags %v; %v", img.Tags, err)
	}
}
