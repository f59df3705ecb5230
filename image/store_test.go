package image_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/google/go-cmp/cmp"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// An image has one ID under all of its names, and each name finds the same object (critest:
// "status by all kinds of references").
func TestNames(t *testing.T) {
	reg, other := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg, other)
	img := imagetest.Build(t, "gzip", "x")
	top := reg.Push("team/app", "latest", img)
	reg.Push("team/app", "v1", img)
	other.Push("mirrored", "v2", img)
	for _, ref := range []string{reg.Host + "/team/app", reg.Host + "/team/app:v1", other.Host + "/mirrored:v2"} {
		if got := p.Pull(ref); got.ID != img.ID() {
			t.Errorf("pull of %s gave %s", ref, got.ID)
		}
	}
	list := p.Store.List()
	if len(list) != 1 {
		t.Fatalf("list is %v", list)
	}
	want := list[0]
	tags := []string{reg.Host + "/team/app:latest", reg.Host + "/team/app:v1", other.Host + "/mirrored:v2"}
	slices.Sort(tags)
	if diff := cmp.Diff(tags, want.Tags); diff != "" {
		t.Errorf("tags (-want +got):\n%s", diff)
	}
	hex := strings.TrimPrefix(img.ID(), "sha256:")
	for _, ref := range []string{
		img.ID(), hex, hex[:12], "sha256:" + hex[:8], reg.Host + "/team/app", reg.Host + "/team/app:v1",
		reg.Host + "/team/app@" + top.String(), reg.Host + "/team/app:anything@" + top.String(), other.Host + "/mirrored:v2",
	} {
		got, err := p.Store.Get(ref)
		if err != nil {
			t.Errorf("%s: %v", ref, err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", ref, diff)
		}
	}
	for ref, kind := range map[string]fault.Kind{
		reg.Host + "/team/app:v3": fault.NotFound,
		"team/app":                fault.NotFound,
		"sha256:0000":             fault.NotFound,
		"busybox":                 fault.NotFound,
		strings.Repeat("0", 64):   fault.NotFound,
		"sha256:xyz":              fault.Invalid,
		"":                        fault.Invalid,
		"a b":                     fault.Invalid,
	} {
		if _, err := p.Store.Get(ref); !errors.Is(err, kind) {
			t.Errorf("%q: error is %v, want one of kind %v", ref, err, kind)
		}
	}
	p.Reopen(image.Options{Settings: image.Settings{Pinned: []string{"*/team/app:v1"}}})
	got, err := p.Store.Get(hex)
	want.Pinned = true
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("after a restart (-want +got, err %v):\n%s", err, diff)
	}
}

// A name without a registry is searched for as registries.conf says.
func TestShortNames(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t)
	if _, err := p.Store.Get("app"); err == nil { // reads the configuration before it is changed
		t.Error("there is an image before it was pulled")
	}
	p.Configure(fmt.Sprintf(`
		unqualified-search-registries = ["nowhere.invalid", %q]
		[aliases]
		"nick" = "%s/long/name"
		[[registry]]
		location = "nowhere.invalid"
		blocked = true
		[[registry]]
		location = %q
		insecure = true`, reg.Host, reg.Host, reg.Host))
	img := imagetest.Build(t, "gzip", "x")
	reg.Push("app", "latest", img)
	reg.Push("long/name", "v1", img)
	p.Pull("app")
	got := p.Pull("nick:v1")
	if want := []string{reg.Host + "/app:latest", reg.Host + "/long/name:v1"}; !slices.Equal(got.Tags, want) {
		t.Errorf("tags are %v, want %v", got.Tags, want)
	}
	for _, ref := range []string{"app", "nick:v1", "app:latest"} {
		if _, err := p.Store.Get(ref); err != nil {
			t.Error(err)
		}
	}
}

// CRI: "RemoveImage removes the image", so all of its names, whichever of them is given; it
// may be called twice at once.
func TestRemove(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	img := imagetest.Build(t, "gzip", "base", "x")
	keep := imagetest.Build(t, "gzip", "base", "y")
	reg.Push("app", "v1", img)
	reg.Push("app", "v2", img)
	reg.Push("app", "keep", keep)
	kept := p.Pull(reg.Host + "/app:keep")
	for _, ref := range []string{reg.Host + "/app:v2", img.ID(), img.ID()[7:20]} {
		p.Pull(reg.Host + "/app:v1")
		p.Pull(reg.Host + "/app:v2")
		used := p.Store.FsInfo()
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if err := p.Store.Remove(t.Context(), ref); err != nil && !errors.Is(err, fault.NotFound) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if _, err := p.Store.Get(reg.Host + "/app:v1"); !errors.Is(err, fault.NotFound) {
			t.Errorf("error is %v, want one of kind %v", err, fault.NotFound)
		}
		if list := p.Store.List(); len(list) != 1 || list[0].ID != kept.ID {
			t.Errorf("list is %v", list)
		}
		if n := p.Layers(); n != 2 {
			t.Errorf("%d layers on disk, want 2", n)
		}
		if now := p.Store.FsInfo(); now.UsedBytes >= used.UsedBytes || now.Inodes >= used.Inodes || now.UsedBytes == 0 {
			t.Errorf("used %+v, and %+v before", now, used)
		}
	}
	if err := p.Store.Remove(t.Context(), "no/such:image"); !errors.Is(err, fault.NotFound) {
		t.Errorf("error is %v, want one of kind %v", err, fault.NotFound)
	}
}

// The kubelet measures the disk as soon as it has removed images, and evicts pods if the space does
// not suffice. So the space must be free by then.
func TestRemovedImageHasFreedItsRoom(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	files := make(map[string]string)
	for i := range 3000 {
		files[fmt.Sprintf("file%d", i)] = "x"
	}
	reg.Push("app", "v1", imagetest.BuildOf(t, "gzip", v1.Image{}, imagetest.TarOf(t, files)))
	img := p.Pull(reg.Host + "/app:v1")
	if err := p.Store.Remove(t.Context(), img.ID); err != nil {
		t.Fatal(err)
	}
	if left := p.Names("staging"); len(left) != 0 {
		t.Errorf("still on the disk: %v", left)
	}
}

// The leftovers of a crash are removed at the next start: unfinished work, and layers
// without an image.
func TestOpenSweeps(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "latest", imagetest.Build(t, "gzip", "a", "b"))
	img := p.Pull(reg.Host + "/app")
	p.Close()
	for _, dir := range []string{"staging/layer-1/fs/d", "staging/gone-2/x", "layers/" + strings.Repeat("ab", 32) + "/fs"} {
		if err := os.MkdirAll(filepath.Join(p.Root(), dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	p.Open(image.Options{})
	if n := p.Layers(); n != 2 {
		t.Errorf("%d layers, want 2", n)
	}
	if _, err := p.Store.Get(img.ID); err != nil {
		t.Error(err)
	}
	p.Swept("")
}

// After a power cut the layers committed last are verified. Damaged ones are removed,
// with the images that need them, and nothing else; a pull restores them.
func TestUnclean(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	whole, hurt := imagetest.Build(t, "gzip", "whole"), imagetest.Build(t, "gzip", "base", "hurt")
	reg.Push("whole", "latest", whole)
	reg.Push("hurt", "latest", hurt)
	damages := map[string]func(fs string) error{
		"truncated file":   func(fs string) error { return os.Truncate(filepath.Join(fs, "top"), 0) },
		"missing file":     func(fs string) error { return os.Remove(filepath.Join(fs, "top")) },
		"missing tree":     func(fs string) error { return os.RemoveAll(fs) },
		"missing record":   func(fs string) error { return os.Remove(filepath.Join(filepath.Dir(fs), "layer.json")) },
		"truncated record": func(fs string) error { return os.Truncate(filepath.Join(filepath.Dir(fs), "layer.json"), 10) },
	}
	if imagetest.IsEROFS() {
		damages = map[string]func(fs string) error{
			"truncated file":   func(fs string) error { return os.Truncate(fs+".erofs", 8192) },
			"empty file":       func(fs string) error { return os.Truncate(fs+".erofs", 0) },
			"changed metadata": func(fs string) error { return changeEnd(fs + ".erofs") },
			"missing file":     func(fs string) error { return os.Remove(fs + ".erofs") },
			"missing record":   func(fs string) error { return os.Remove(filepath.Join(filepath.Dir(fs), "erofs.json")) },
			"truncated record": func(fs string) error { return os.Truncate(filepath.Join(filepath.Dir(fs), "erofs.json"), 10) },
		}
	}
	for name, damage := range damages {
		p.Pull(reg.Host + "/whole")
		p.Pull(reg.Host + "/hurt")
		top := imagetest.DigestOf(hurt.Plain[1])
		if err := damage(filepath.Join(p.Root(), "layers", top, "fs")); err != nil {
			t.Fatal(err)
		}
		p.Reopen(image.Options{Unclean: true})
		if _, err := p.Store.Get(whole.ID()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := p.Store.Get(hurt.ID()); !errors.Is(err, fault.NotFound) {
			t.Errorf("%s: the image is still there (err %v)", name, err)
		}
		if n := p.Layers(); n != 1 {
			t.Errorf("%s: %d layers, want that of the whole image", name, n)
		}
		healed := p.Pull(reg.Host + "/hurt")
		if got := imagetest.ReadFile(t, p.Mount("k", healed.ID), "top"); got != "hurt" {
			t.Errorf("%s: file holds %q after the pull", name, got)
		}
		if err := p.Store.RootFS().Unmount(t.Context(), "k", true); err != nil {
			t.Fatal(err)
		}
	}
}

// changeEnd changes the last byte of a file.
func changeEnd(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	data[len(data)-1] ^= 1
	return os.WriteFile(path, data, 0o600)
}

// The layers that a long pull has unpacked first are verified, too: they were committed
// with the rest.
func TestUncleanAfterLongPull(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	hurt := imagetest.Build(t, "gzip", "first", "last")
	reg.Push("hurt", "latest", hurt)
	p.Pull(reg.Host + "/hurt")
	dir := filepath.Join(p.Root(), "layers", imagetest.DigestOf(hurt.Plain[0]))
	files, record := filepath.Join(dir, "fs", "layer0"), filepath.Join(dir, "layer.json")
	if imagetest.IsEROFS() {
		files, record = filepath.Join(dir, "fs.erofs"), filepath.Join(dir, "erofs.json")
	}
	if err := os.Truncate(files, 0); err != nil {
		t.Fatal(err)
	}
	// Make the layer two hours older.
	before := time.Now().Add(-2 * time.Hour)
	data, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Fatal(err)
	}
	fields["Unpacked"] = before
	if data, err = json.Marshal(fields); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(record, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{record, dir} {
		if err := os.Chtimes(path, before, before); err != nil {
			t.Fatal(err)
		}
	}
	p.Reopen(image.Options{Unclean: true})
	if _, err := p.Store.Get(hurt.ID()); !errors.Is(err, fault.NotFound) {
		t.Errorf("the image is still there (err %v)", err)
	}
	healed := p.Pull(reg.Host + "/hurt")
	if got := imagetest.ReadFile(t, p.Mount("k", healed.ID), "layer0"); got != "first" {
		t.Errorf("file holds %q after the pull", got)
	}
}

// A disk that fills up during a pull or a load gives one clear error. Nothing is left, and
// with space the same call succeeds.
func TestDiskFull(t *testing.T) {
	imagetest.NeedRoot(t)
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	p.Close()
	if err := unix.Mount("none", p.Root(), "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // before the test looks for leaks, since an overlay that is left keeps the disk busy
		if p.Store != nil {
			p.Close()
		}
		if err := unix.Unmount(p.Root(), 0); err != nil {
			t.Error(err)
		}
	})
	p.Open(image.Options{})
	big := imagetest.BuildOf(t, "gzip", v1.Image{}, imagetest.TarOf(t, map[string]string{"a": "small"}), imagetest.TarOf(t, map[string]string{"b": strings.Repeat("x", 6<<20)}))
	reg.Push("big", "latest", big)
	full := func(err error) {
		t.Helper()
		if !errors.Is(err, unix.ENOSPC) || !errors.Is(err, fault.Unavailable) {
			t.Errorf("error is %v", err)
		}
		if n := p.Layers() + len(p.Names("staging")) + len(p.Store.List()); n != 0 {
			t.Errorf("%d things are left", n)
		}
	}
	_, err := p.Store.Pull(t.Context(), reg.Host+"/big", registry.Caller{})
	full(err)
	_, err = p.Store.Load(t.Context(), bytes.NewReader(ociArchive(t, big, nil)))
	full(err)
	if err := unix.Mount("none", p.Root(), "", unix.MS_REMOUNT, "size=40m"); err != nil {
		t.Fatal(err)
	}
	if img := p.Pull(reg.Host + "/big"); img.ID != big.ID() {
		t.Errorf("image is %s", img.ID)
	}
}

// The store of a new node is private from the beginning, in whatever order its directories
// are made.
func TestNewStoreIsPrivate(t *testing.T) {
	for range 20 {
		st, err := os.Stat(imagetest.NewPlace(t).Root())
		if err != nil || st.Mode().Perm() != 0o700 {
			t.Fatalf("%v, %v; want mode 0700", st, err)
		}
	}
}
