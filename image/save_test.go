package image_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// saved returns the archive that Save makes of an image, and the image ID in it.
func saved(t testing.TB, s *image.Store, ref string) ([]byte, string) {
	t.Helper()
	var buf bytes.Buffer
	var id string
	err := s.Save(t.Context(), ref, func(name string) (io.Writer, error) {
		id = name
		return &buf, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return buf.Bytes(), id
}

// An image that is saved, removed and loaded has its files, config and name again, from and
// to either form of layers. From the second archive on, made from layers, its ID stays the
// same.
func TestSave(t *testing.T) {
	for _, forms := range [][2]string{{"", ""}, {image.EROFS, image.EROFS}, {"", image.EROFS}} {
		t.Run(strings.Join(forms[:], " to "), func(t *testing.T) {
			p := imagetest.NewPlace(t)
			p.Reopen(image.Options{Layers: forms[0]})
			empty := imagetest.TarOf(t, nil)
			img := imagetest.BuildOf(t, "gzip", v1.Image{Author: "<me>", Config: v1.ImageConfig{Env: []string{"A=b"}}},
				imagetest.TarOf(t, map[string]string{"etc/": "", "etc/a": "1", "etc/b": "2", "top": "old"}), empty,
				imagetest.TarOf(t, map[string]string{"etc/.wh.b": "", "top": "new"}), empty)
			const name = "example.com/app:v1"
			if _, err := p.Store.Load(t.Context(), bytes.NewReader(ociArchive(t, img, map[string]string{v1.AnnotationRefName: name}))); err != nil {
				t.Fatal(err)
			}
			data, id := saved(t, p.Store, name)
			if err := p.Store.Remove(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			p.Reopen(image.Options{Layers: forms[1]})
			list, err := p.Store.Load(t.Context(), bytes.NewReader(data))
			if err != nil || len(list) != 1 || list[0].ID != id || !slices.Equal(list[0].Tags, []string{name}) {
				t.Fatalf("loaded %+v, want the ID %s; %v", list, id, err)
			}
			if c := list[0].Config; c.Author != "<me>" || !slices.Equal(c.Config.Env, []string{"A=b"}) {
				t.Errorf("config is %+v", c)
			}
			root := p.Mount("k", id)
			if a, top := imagetest.ReadFile(t, root, "etc/a"), imagetest.ReadFile(t, root, "top"); a != "1" || top != "new" {
				t.Errorf("etc/a is %q, top %q", a, top)
			}
			if _, err := os.Stat(filepath.Join(root, "etc/b")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("etc/b, which a layer removes: %v", err)
			}
			if again, second := saved(t, p.Store, name); second != id || !bytes.Equal(again, data) {
				t.Errorf("saved again it is %s, before %s", second, id)
			}
		})
	}
}

// The archive has two formats in one, each complete without the other: an OCI layout, and
// that of docker save.
func TestSaveIsTwoKinds(t *testing.T) {
	p := imagetest.NewPlace(t)
	img := imagetest.Build(t, "zstd", "one", "two")
	const name = "example.com/app:v1"
	if _, err := p.Store.Load(t.Context(), bytes.NewReader(ociArchive(t, img, map[string]string{v1.AnnotationRefName: name}))); err != nil {
		t.Fatal(err)
	}
	data, id := saved(t, p.Store, name)
	if err := p.Store.Remove(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	for kind, other := range map[string][]string{"docker": {v1.ImageLayoutFile, v1.ImageIndexFile}, "OCI": {"manifest.json"}} {
		list, err := p.Store.Load(t.Context(), bytes.NewReader(without(t, data, other...)))
		if err != nil || len(list) != 1 || list[0].ID != id || !slices.Equal(list[0].Tags, []string{name}) {
			t.Fatalf("%s: loaded %+v, want the ID %s; %v", kind, list, id, err)
		}
		if top := imagetest.ReadFile(t, p.Mount(kind, id), "top"); top != "two" {
			t.Errorf("%s: top is %q", kind, top)
		}
		if err := errors.Join(p.Store.RootFS().Unmount(t.Context(), kind, true), p.Store.Remove(t.Context(), id)); err != nil {
			t.Fatal(err)
		}
	}
}

// without removes members from an archive, and checks that blobs are named by their
// digests.
func without(t testing.TB, data []byte, names ...string) []byte {
	t.Helper()
	files := map[string]string{}
	for tr := tar.NewReader(bytes.NewReader(data)); ; {
		hdr, err := tr.Next()
		if err == io.EOF {
			return imagetest.TarOf(t, files)
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if hex, isBlob := strings.CutPrefix(hdr.Name, "blobs/sha256/"); isBlob && imagetest.DigestOf(content) != hex {
			t.Errorf("%s has another digest", hdr.Name)
		}
		if !slices.Contains(names, hdr.Name) {
			files[hdr.Name] = string(content)
		}
	}
}

// A failed save returns the reason before anything is written, and a save whose client gives up
// retains no layer.
func TestSaveFails(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.PushArtifact("model", "v1", "weights.bin", "1 2 3")
	p.Pull(reg.Host + "/model:v1")
	img := imagetest.Build(t, "plain", "one")
	if _, err := p.Store.Load(t.Context(), bytes.NewReader(ociArchive(t, img, nil))); err != nil {
		t.Fatal(err)
	}
	never := func(string) (io.Writer, error) {
		t.Error("something was written")
		return io.Discard, nil
	}
	if err := p.Store.Save(t.Context(), "nothing:1", never); !errors.Is(err, fault.NotFound) {
		t.Errorf("save of a missing image: %v", err)
	}
	if err := p.Store.Save(t.Context(), reg.Host+"/model:v1", never); !errors.Is(err, fault.Invalid) {
		t.Errorf("save of an artifact: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := p.Store.Save(ctx, img.ID(), func(string) (io.Writer, error) {
		cancel()
		return io.Discard, nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("save whose client gives up: %v", err)
	}
	data, _ := saved(t, p.Store, img.ID())
	if bytes.Contains(data, []byte("RepoTags\":[")) {
		t.Error("saved by its ID, the image has a name")
	}
	if err := p.Store.Remove(t.Context(), img.ID()); err != nil {
		t.Fatal(err)
	}
	p.Swept("gone-")
	if n := p.Layers(); n != 1 { // the artifact's
		t.Errorf("%d layers are left, want 1", n)
	}
}
