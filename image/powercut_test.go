package image_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/checkpoint"
	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/erofs"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/filetrace"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/crisp-cri/crisp/test/powercut"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// settingsOf returns the settings of a store that pulls from the registries, one layer at a
// time.
func settingsOf(t testing.TB, registries ...*imagetest.Registry) image.Settings {
	t.Helper()
	dir := t.TempDir()
	s := image.Settings{MaxParallel: 1, Settings: registry.Settings{
		RegistriesConf:    filepath.Join(dir, "registries.conf"),
		RegistriesConfDir: filepath.Join(dir, "registries.conf.d"),
		AuthFile:          filepath.Join(dir, "auth.json"),
		PolicyPath:        filepath.Join(dir, "policy.json"),
	}}
	var conf strings.Builder
	for _, r := range registries {
		fmt.Fprintf(&conf, "[[registry]]\nlocation = %q\ninsecure = true\n", r.Host)
	}
	for path, text := range map[string]string{
		s.RegistriesConf: conf.String(), s.PolicyPath: `{"default":[{"type":"insecureAcceptAnything"}]}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// openRecords opens the records of a store below dir.
func openRecords(dir string) (*checkpoint.Manager, error) {
	return checkpoint.Open(filepath.Join(dir, "records"), "", slog.New(slog.DiscardHandler))
}

// openBelow opens a store below dir, as after a boot.
func openBelow(t testing.TB, dir string, s image.Settings, records image.Records) (*image.Store, error) {
	log := slog.New(slog.DiscardHandler)
	return image.Open(t.Context(), image.Options{
		Root: filepath.Join(dir, "store"), State: filepath.Join(dir, "state"), Records: records, Log: log,
		Unclean: true, Settings: s, Layers: imagetest.Layers,
	})
}

// A content is the files of a layer, by name.
type content map[string]string

func contents(t testing.TB, imgs ...*imagetest.Built) map[digest.Digest]content {
	t.Helper()
	all := map[digest.Digest]content{}
	for _, img := range imgs {
		for _, plain := range img.Plain {
			c := content{}
			tr := tar.NewReader(bytes.NewReader(plain))
			for {
				hdr, err := tr.Next()
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				data, err := io.ReadAll(tr)
				if err != nil {
					t.Fatal(err)
				}
				if hdr.Typeflag == tar.TypeReg {
					c[hdr.Name] = string(data)
				}
			}
			all[digest.FromBytes(plain)] = c
		}
	}
	return all
}

// whole returns an error if files of img below dir are missing or wrong.
func whole(dir string, img image.Image, want map[digest.Digest]content) error {
	for _, id := range img.Config.RootFS.DiffIDs {
		files := filepath.Join(dir, "store", "layers", id.Encoded(), "fs")
		if imagetest.IsEROFS() {
			mnt, err := erofs.Mount(files+".erofs", "")
			if err != nil {
				return err
			}
			defer unix.Close(mnt)
			files = fmt.Sprintf("/proc/self/fd/%d", mnt)
		}
		n, tree := 0, os.DirFS(files)
		err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			n++
			data, err := fs.ReadFile(tree, name)
			if err == nil && string(data) != want[id][name] {
				err = fmt.Errorf("%s has %d bytes, want %d: %.20q", name, len(data), len(want[id][name]), data)
			}
			return err
		})
		if err == nil && n != len(want[id]) {
			err = fmt.Errorf("%d files, want %d", n, len(want[id]))
		}
		if err != nil {
			return fmt.Errorf("image %v, layer %s: %w", img.Tags, id, err)
		}
	}
	return nil
}

// After a power cut, an image whose pull was answered exists and is complete; one that was
// being pulled is complete or absent. Nothing else is served, and leftovers are removed.
func TestPowerCut(t *testing.T) {
	imagetest.NeedRoot(t)
	reg := imagetest.NewRegistry(t)
	big := strings.Repeat("program", 3000)
	base := imagetest.TarOf(t, map[string]string{"bin/": "", "bin/sh": big, "etc/": "", "etc/conf": "base"})
	first := imagetest.BuildOf(t, "gzip", v1.Image{}, base, imagetest.TarOf(t, map[string]string{"app/": "", "app/run": "one"}))
	second := imagetest.BuildOf(t, "gzip", v1.Image{}, base, imagetest.TarOf(t, map[string]string{"etc/conf": "two"}))
	reg.Push("app", "v1", first)
	reg.Push("app", "v2", second)
	want := contents(t, first, second)
	settings := settingsOf(t, reg)
	dir := t.TempDir()
	records, err := openRecords(dir)
	if err != nil {
		t.Fatal(err)
	}
	name := "pull_remove"
	if imagetest.IsEROFS() {
		name = "pull_remove_erofs"
	}
	powercut.Case{
		Name:   name,
		Dir:    dir,
		OnDisk: imagetest.IsEROFS(), // EROFS is not mounted from memory
		Run: func(dir string, safe func(string)) {
			s, err := openBelow(t, dir, settings, records)
			if err != nil {
				t.Error(err)
				return
			}
			ok := func(what string, err error) {
				if err != nil {
					t.Errorf("%s: %v", what, err)
				}
				safe(what)
			}
			_, err = s.Pull(t.Context(), reg.Host+"/app:v1", registry.Caller{})
			ok("pulled v1", err)
			_, err = s.Pull(t.Context(), reg.Host+"/app:v2", registry.Caller{})
			ok("pulled v2", err)
			reg.Push("app", "v1", second)
			_, err = s.Pull(t.Context(), reg.Host+"/app:v1", registry.Caller{})
			ok("v1 moved", err)
			ok("removed first", s.Remove(t.Context(), first.ID()))
			ok("removed second", s.Remove(t.Context(), second.ID()))
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		},
		Check: func(dir string, safe []string) error {
			records, err := openRecords(dir)
			if err != nil {
				return err
			}
			s, err := openBelow(t, dir, settings, records)
			if err != nil {
				return err
			}
			defer s.Close()
			// The images to be found after so many steps, while the next step runs.
			type images struct {
				may  []string
				must bool
			}
			one, two, both := []string{first.ID()}, []string{second.ID()}, []string{first.ID(), second.ID()}
			n := len(safe)
			for ref, want := range map[string]images{
				first.ID():           {one, n == 1 || n == 2},
				second.ID():          {two, n == 2 || n == 3},
				reg.Host + "/app:v1": [...]images{{one, false}, {one, true}, {both, true}, {two, true}, {two, false}, {two, false}}[n],
				reg.Host + "/app:v2": {two, n == 2 || n == 3},
			} {
				img, err := s.Get(ref)
				switch {
				case errors.Is(err, fault.NotFound) && !want.must:
				case err != nil:
					return fmt.Errorf("%s: %w", ref, err)
				case !slices.Contains(want.may, img.ID):
					return fmt.Errorf("%s is %s", ref, img.ID)
				}
			}
			layers := map[string]bool{}
			for _, img := range s.List() {
				if err := whole(dir, img, want); err != nil {
					return err
				}
				for _, id := range img.Config.RootFS.DiffIDs {
					layers[id.Encoded()] = true
				}
			}
			entries, err := os.ReadDir(filepath.Join(dir, "store", "layers"))
			if err != nil {
				return err
			}
			for _, e := range entries {
				if !layers[e.Name()] {
					return fmt.Errorf("layer %s is nobody's", e.Name())
				}
			}
			return nil
		},
		Lane: func(op filetrace.Op) string {
			// The times of a layer's directories are set in any order.
			if op.Call == "utimensat" && op.File.Mode&unix.S_IFMT == unix.S_IFDIR {
				return op.Path
			}
			return powercut.RecordLanes("records/", "imagerecords")(op)
		},
		// Files that are being removed, or were mounted to probe for EROFS, are removed in
		// their own time.
		Ignore: func(op filetrace.Op) bool {
			return strings.HasPrefix(op.Path, "store/staging/gone-") || strings.HasPrefix(op.Path, "store/staging/erofs-") || op.Path == "state" || strings.HasPrefix(op.Path, "state/")
		},
	}.Test(t)
}
