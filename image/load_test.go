package image_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// ociArchive returns an OCI layout with img in it, under these annotations.
func ociArchive(t testing.TB, img *imagetest.Built, annotations map[string]string) []byte {
	t.Helper()
	desc := img.Desc
	desc.Annotations = annotations
	return layout(t, []v1.Descriptor{desc}, img)
}

func layout(t testing.TB, index []v1.Descriptor, imgs ...*imagetest.Built) []byte {
	t.Helper()
	files := map[string]string{
		v1.ImageLayoutFile: `{"imageLayoutVersion":"1.0.0"}`,
		v1.ImageIndexFile:  string(imagetest.MustJSON(t, v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, Manifests: index})),
	}
	for _, img := range imgs {
		for _, data := range append([][]byte{img.Config, img.Manifest}, img.Blobs...) {
			files["blobs/sha256/"+imagetest.DigestOf(data)] = string(data)
		}
	}
	return imagetest.TarOf(t, files)
}

// A loaded archive gives the same image as a pull, compressed or not.
func TestLoadOCI(t *testing.T) {
	p := imagetest.NewPlace(t)
	for _, c := range []struct {
		annotations map[string]string
		tag, digest string
	}{
		{map[string]string{"org.opencontainers.image.ref.name": "example.com/app:v1"}, "example.com/app:v1", "example.com/app"},
		{map[string]string{"org.opencontainers.image.ref.name": "v2", "io.containerd.image.name": "docker.io/library/app:v2"}, "docker.io/library/app:v2", "docker.io/library/app"},
		{map[string]string{"org.opencontainers.image.ref.name": "app"}, "docker.io/library/app:latest", "docker.io/library/app"},
		{nil, "", ""},
	} {
		for _, compression := range []string{"plain", "gzip", "zstd"} {
			img := imagetest.Build(t, compression, "a", "b "+c.tag)
			data, _ := imagetest.Compress(t, compression, ociArchive(t, img, c.annotations))
			got, err := p.Store.Load(t.Context(), bytes.NewReader(data))
			if err != nil || len(got) != 1 {
				t.Fatalf("%v: %v (err %v)", c.annotations, got, err)
			}
			var tags, digests []string
			if c.tag != "" {
				tags, digests = []string{c.tag}, []string{c.digest + "@" + img.Desc.Digest.String()}
			}
			if got[0].ID != img.ID() || !slices.Equal(got[0].Tags, tags) || !slices.Equal(got[0].Digests, digests) && compression == "plain" {
				t.Errorf("%v: image is %+v", c.annotations, got[0])
			}
			if top := imagetest.ReadFile(t, p.Mount("k", got[0].ID), "top"); top != "b "+c.tag {
				t.Errorf("%v: top is %q", c.annotations, top)
			}
			if err := p.Store.RootFS().Unmount(t.Context(), "k", true); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Of several platforms, in an index or side by side under one name, ours is loaded; another
// name is another image.
func TestLoadPlatforms(t *testing.T) {
	p := imagetest.NewPlace(t)
	foreign := imagetest.BuildOf(t, "gzip", v1.Image{Platform: v1.Platform{OS: "linux", Architecture: "s390x"}}, imagetest.TarOf(t, map[string]string{"x": "foreign"}))
	ours := imagetest.Build(t, "gzip", "ours")
	second := imagetest.Build(t, "gzip", "second")
	named := func(desc v1.Descriptor, name string) v1.Descriptor {
		desc.Annotations = map[string]string{v1.AnnotationRefName: name}
		return desc
	}
	inner := imagetest.MustJSON(t, v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{foreign.Desc, ours.Desc}})
	index := v1.Descriptor{MediaType: v1.MediaTypeImageIndex, Digest: digest.FromBytes(inner), Size: int64(len(inner))}
	got, err := p.Store.Load(t.Context(), bytes.NewReader(layout(t,
		[]v1.Descriptor{named(foreign.Desc, "side"), named(ours.Desc, "side"), named(second.Desc, "second")}, foreign, ours, second)))
	if err != nil || len(got) != 2 || got[0].ID != ours.ID() || got[1].ID != second.ID() {
		t.Errorf("loaded %v (err %v)", got, err)
	}
	nested := layout(t, []v1.Descriptor{named(index, "nested")}, foreign, ours, &imagetest.Built{Config: inner})
	got, err = p.Store.Load(t.Context(), bytes.NewReader(nested))
	if err != nil || len(got) != 1 || got[0].ID != ours.ID() || !slices.Contains(got[0].Digests, "docker.io/library/nested@"+index.Digest.String()) {
		t.Errorf("loaded %v (err %v)", got, err)
	}
}

// An archive of docker save may have symlinks in place of layers that it has already.
func TestLoadDocker(t *testing.T) {
	p := imagetest.NewPlace(t)
	img := imagetest.Build(t, "plain", "one", "two")
	config := imagetest.DigestOf(img.Config) + ".json"
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	add := func(hdr tar.Header, content string) {
		hdr.Size, hdr.Mode = int64(len(content)), 0o644
		if err := tw.WriteHeader(&hdr); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, content); err != nil {
			t.Fatal(err)
		}
	}
	add(tar.Header{Name: "store/one.tar"}, string(img.Plain[0]))
	add(tar.Header{Name: "a/layer.tar", Typeflag: tar.TypeSymlink, Linkname: "../store/one.tar"}, "")
	add(tar.Header{Name: "b/layer.tar"}, string(img.Plain[1]))
	add(tar.Header{Name: config}, string(img.Config))
	add(tar.Header{Name: "manifest.json"}, string(imagetest.MustJSON(t, []map[string]any{{
		"Config": config, "RepoTags": []string{"app:v1", "example.com/x:v2"}, "Layers": []string{"a/layer.tar", "b/layer.tar"},
	}})))
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := p.Store.Load(t.Context(), &buf)
	if err != nil || len(got) != 1 {
		t.Fatalf("loaded %v (err %v)", got, err)
	}
	if want := []string{"docker.io/library/app:v1", "example.com/x:v2"}; got[0].ID != img.ID() || !slices.Equal(got[0].Tags, want) || len(got[0].Digests) != 0 {
		t.Errorf("image is %+v", got[0])
	}
	if _, err := p.Store.Get("app:v1"); err != nil {
		t.Error(err)
	}
}

// A file that is not a complete archive gives an error that says so, and leaves
// nothing.
func TestLoadFails(t *testing.T) {
	p := imagetest.NewPlace(t)
	img := imagetest.Build(t, "gzip", "a", "b")
	good := ociArchive(t, img, nil)
	damaged := bytes.Replace(good, img.Blobs[1], make([]byte, len(img.Blobs[1])), 1)
	for name, data := range map[string][]byte{
		"nothing":        nil,
		"text":           []byte("this is not an archive, and it is longer than a header of five hundred and twelve bytes" + string(make([]byte, 600))),
		"an empty tar":   imagetest.TarOf(t, nil),
		"half":           good[:len(good)/2],
		"no blobs":       layout(t, []v1.Descriptor{img.Desc}),
		"bad index":      imagetest.TarOf(t, map[string]string{"oci-layout": "{}", "index.json": "{"}),
		"bad manifest":   imagetest.TarOf(t, map[string]string{"manifest.json": `[{"Config":"../../etc/passwd","Layers":[]}]`}),
		"damaged layer":  damaged,
		"half of a gzip": {0x1f, 0x8b, 8, 0},
	} {
		got, err := p.Store.Load(t.Context(), bytes.NewReader(data))
		if !errors.Is(err, fault.Invalid) && !errors.Is(err, fault.Unavailable) || len(got) != 0 {
			t.Errorf("%s: loaded %v, error is %v", name, got, err)
		}
		if n := p.Layers() + len(p.Names("staging")); n != 0 {
			t.Errorf("%s: %d things are left", name, n)
		}
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if target, err := os.Readlink(filepath.Join("/proc/self/fd", fd.Name())); err == nil && strings.HasPrefix(target, p.Root()+"/") {
			t.Errorf("%s is still open", target)
		}
	}
	if _, err := p.Store.Load(t.Context(), bytes.NewReader(good)); err != nil {
		t.Error(err)
	}
}
