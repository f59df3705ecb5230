package main

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// Fetched images are served with the same digests, including an index with only one fetched
// platform.
func TestRegistryServesWhatWasFetched(t *testing.T) {
	from := httptest.NewServer(registry.New())
	defer from.Close()
	dir := t.TempDir()
	to := httptest.NewServer(stored(dir))
	defer to.Close()

	image, err := random.Image(1000, 2)
	if err != nil {
		t.Fatal(err)
	}
	other, err := random.Image(1000, 1)
	if err != nil {
		t.Fatal(err)
	}
	list := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}},
		mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}})
	ref := func(host, path string) name.Reference {
		r, err := name.ParseReference(strings.TrimPrefix(host, "http://")+"/"+path, name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if err := remote.Write(ref(from.URL, "a/plain:1"), image); err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref(from.URL, "a/list:1"), list); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"a/plain:1", "a/list:1"} {
		if err := fetchImage(t.Context(), ref(from.URL, path).String(), dir); err != nil {
			t.Fatal(err)
		}
		was, err := remote.Head(ref(from.URL, path))
		if err != nil {
			t.Fatal(err)
		}
		is, err := remote.Head(ref(to.URL, path))
		if err != nil {
			t.Fatal(err)
		}
		if is.Digest != was.Digest || is.MediaType != was.MediaType {
			t.Errorf("%s is %v, want %v", path, is, was)
		}
		got, err := remote.Image(ref(to.URL, path), remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "amd64"}))
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Image(got); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := remote.Head(ref(to.URL, "a/nosuch:1")); err == nil {
		t.Error("an image that was not fetched is served")
	}
}
