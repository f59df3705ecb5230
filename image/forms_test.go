package image_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/crisp-cri/crisp/test/testenv"
	"github.com/google/go-cmp/cmp"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// A node whose configuration or kernel changes has layers of both forms, and images with
// both: a layer's form depends on the day of its pull, and containers see the same files.
func TestFormsInOneImage(t *testing.T) {
	testenv.Need(t, "erofs")
	layers := [][]byte{
		imagetest.TarOf(t, map[string]string{"etc/": "", "etc/conf": "base", "etc/gone": "x", "etc/kept": "x", "opaque/": "", "opaque/old": "x"}),
		imagetest.TarOf(t, map[string]string{"etc/": "", "etc/.wh.gone": "", "etc/conf": "middle", "opaque/": "", "opaque/.wh..wh..opq": "", "opaque/new": "x"}),
		imagetest.TarOf(t, map[string]string{"etc/": "", "etc/conf": "top", "etc/gone": "again"}),
	}
	const directories = "directories"
	for name, forms := range map[string][]string{
		"EROFS above directories": {directories, image.EROFS, directories},
		"directories above EROFS": {image.EROFS, directories, image.EROFS},
	} {
		t.Run(name, func(t *testing.T) {
			reg := imagetest.NewRegistry(t)
			p := imagetest.NewPlace(t, reg)
			var id string
			for i, form := range forms {
				p.Reopen(image.Options{Layers: form})
				img := imagetest.BuildOf(t, "gzip", v1.Image{}, layers[:i+1]...)
				reg.Push("app", "latest", img)
				id = p.Pull(reg.Host + "/app").ID
				dir := filepath.Join(p.Root(), "layers", imagetest.DigestOf(layers[i]))
				file := map[string]string{directories: "fs", image.EROFS: "fs.erofs"}[form]
				if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
					t.Error(err)
				}
			}
			for i, form := range []string{directories, image.EROFS, image.Auto} {
				p.Reopen(image.Options{Layers: form, Unclean: i > 0})
				if n := p.Layers(); n != 3 {
					t.Fatalf("%d layers with %s", n, form)
				}
				root := p.Mount("k", id)
				got := map[string]string{}
				for _, name := range []string{"etc/conf", "etc/gone", "etc/kept", "opaque/new"} {
					got[name] = imagetest.ReadFile(t, root, name)
				}
				want := map[string]string{"etc/conf": "top", "etc/gone": "again", "etc/kept": "x", "opaque/new": "x"}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("with %s (-want +got):\n%s", form, diff)
				}
				if _, err := os.Stat(filepath.Join(root, "opaque/old")); !os.IsNotExist(err) {
					t.Errorf("with %s: a hidden file is visible (err %v)", form, err)
				}
				if err := os.WriteFile(filepath.Join(root, "etc/kept"), []byte("changed"), 0o600); err != nil {
					t.Errorf("with %s: %v", form, err)
				}
				if err := p.Store.RootFS().Unmount(t.Context(), "k", true); err != nil {
					t.Fatal(err)
				}
			}
			if mounted, _ := filepath.Glob(filepath.Join(p.Dir, "state", ".layers", "*")); len(mounted) > 0 {
				t.Errorf("layers are still mounted: %v", mounted)
			}
		})
	}
}

// A running container keeps its layers, in their form, while crispd is restarted with the
// other form and the image is removed and pulled again.
func TestFormChangesUnderContainer(t *testing.T) {
	testenv.Need(t, "erofs")
	for _, forms := range [][]string{{"directories", image.EROFS}, {image.EROFS, "directories"}} {
		reg := imagetest.NewRegistry(t)
		p := imagetest.NewPlace(t, reg)
		p.Reopen(image.Options{Layers: forms[0]})
		img := imagetest.Build(t, "gzip", "base", "x")
		reg.Push("app", "latest", img)
		id := p.Pull(reg.Host + "/app").ID
		root := p.Mount("one", id)
		p.Reopen(image.Options{Layers: forms[1]})
		if err := p.Store.Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		p.Pull(reg.Host + "/app")
		other := p.Mount("two", id)
		for _, dir := range []string{root, other} {
			if got := imagetest.ReadFile(t, dir, "top"); got != "x" {
				t.Errorf("%v: file holds %q", forms, got)
			}
		}
		if n := p.Layers(); n != 2 {
			t.Errorf("%v: %d layers", forms, n)
		}
		for _, key := range []string{"one", "two"} {
			if err := p.Store.RootFS().Unmount(t.Context(), key, true); err != nil {
				t.Fatal(err)
			}
		}
		// Only the removal of the last user removes layers of the first form.
		if err := p.Store.Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		p.Pull(reg.Host + "/app")
		files, err := filepath.Glob(filepath.Join(p.Root(), "layers", "*", "fs*"))
		if err != nil || len(files) != 2 {
			t.Fatalf("%v: layers are %v (err %v)", forms, files, err)
		}
		packed := slices.ContainsFunc(files, func(f string) bool { return filepath.Ext(f) == ".erofs" })
		if packed != (forms[1] == image.EROFS) {
			t.Errorf("%v: layers are %v", forms, files)
		}
	}
}
