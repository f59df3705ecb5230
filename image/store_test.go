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
	"github.com/google/go-cmp/cmp"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// One image has one ID, whatever names it goes by, and each of them finds the
// same object (critest: "status by all kinds of references").
func TestNames(t *testing.T) {
	reg, other := newRegistry(t), newRegistry(t)
	p := newPlace(t, reg, other)
	img := build(t, "gzip", "x")
	top := reg.push("team/app", "latest", img)
	reg.push("team/app", "v1", img)
	other.push("mirrored", "v2", img)
	for _, ref := range []string{reg.host + "/team/app", reg.host + "/team/app:v1", other.host + "/mirrored:v2"} {
		if got := p.pull(ref); got.ID != img.id() {
			t.Errorf("pull of %s gave %s", ref, got.ID)
		}
	}
	list := p.store.List()
	if len(list) != 1 {
		t.Fatalf("list is %v", list)
	}
	want := list[0]
	tags := []string{reg.host + "/team/app:latest", reg.host + "/team/app:v1", other.host + "/mirrored:v2"}
	slices.Sort(tags)
	if diff := cmp.Diff(tags, want.Tags); diff != "" {
		t.Errorf("tags (-want +got):\n%s", diff)
	}
	hex := strings.TrimPrefix(img.id(), "sha256:")
	for _, ref := range []string{
		img.id(), hex, hex[:12], "sha256:" + hex[:8], reg.host + "/team/app", reg.host + "/team/app:v1",
		reg.host + "/team/app@" + top.String(), reg.host + "/team/app:anything@" + top.String(), other.host + "/mirrored:v2",
	} {
		got, err := p.store.Get(ref)
		if err != nil {
			t.Errorf("%s: %v", ref, err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", ref, diff)
		}
	}
	for ref, kind := range map[string]fault.Kind{
		reg.host + "/team/app:v3": fault.NotFound,
		"team/app":                fault.NotFound,
		"sha256:0000":             fault.NotFound,
		"busybox":                 fault.NotFound,
		strings.Repeat("0", 64):   fault.NotFound,
		"sha256:xyz":              fault.Invalid,
		"":                        fault.Invalid,
		"a b":                     fault.Invalid,
	} {
		if _, err := p.store.Get(ref); !errors.Is(err, kind) {
			t.Errorf("%q: error is %v, want one of kind %v", ref, err, kind)
		}
	}
	p.reopen(image.Options{Settings: image.Settings{Pinned: []string{"*/team/app:v1"}}})
	got, err := p.store.Get(hex)
	want.Pinned = true
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("after a restart (-want +got, err %v):\n%s", err, diff)
	}
}

// A name without a registry is looked for where registries.conf says.
func TestShortNames(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t)
	if _, err := p.store.Get("app"); err == nil { // reads the configuration as it was
		t.Error("there is an image before it was pulled")
	}
	p.configure(fmt.Sprintf(`
		unqualified-search-registries = ["nowhere.invalid", %q]
		[aliases]
		"nick" = "%s/long/name"
		[[registry]]
		location = "nowhere.invalid"
		blocked = true
		[[registry]]
		location = %q
		insecure = true`, reg.host, reg.host, reg.host))
	img := build(t, "gzip", "x")
	reg.push("app", "latest", img)
	reg.push("long/name", "v1", img)
	p.pull("app")
	got := p.pull("nick:v1")
	if want := []string{reg.host + "/app:latest", reg.host + "/long/name:v1"}; !slices.Equal(got.Tags, want) {
		t.Errorf("tags are %v, want %v", got.Tags, want)
	}
	for _, ref := range []string{"app", "nick:v1", "app:latest"} {
		if _, err := p.store.Get(ref); err != nil {
			t.Error(err)
		}
	}
}

// CRI: "RemoveImage removes the image": all of its names, by whichever it is
// asked, and twice at once.
func TestRemove(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	img := build(t, "gzip", "base", "x")
	keep := build(t, "gzip", "base", "y")
	reg.push("app", "v1", img)
	reg.push("app", "v2", img)
	reg.push("app", "keep", keep)
	kept := p.pull(reg.host + "/app:keep")
	for _, ref := range []string{reg.host + "/app:v2", img.id(), img.id()[7:20]} {
		p.pull(reg.host + "/app:v1")
		p.pull(reg.host + "/app:v2")
		used := p.store.FsInfo()
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if err := p.store.Remove(t.Context(), ref); err != nil && !errors.Is(err, fault.NotFound) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if _, err := p.store.Get(reg.host + "/app:v1"); !errors.Is(err, fault.NotFound) {
			t.Errorf("error is %v, want one of kind %v", err, fault.NotFound)
		}
		if list := p.store.List(); len(list) != 1 || list[0].ID != kept.ID {
			t.Errorf("list is %v", list)
		}
		if n := p.layers(); n != 2 {
			t.Errorf("%d layers on disk, want 2", n)
		}
		if now := p.store.FsInfo(); now.UsedBytes >= used.UsedBytes || now.Inodes >= used.Inodes || now.UsedBytes == 0 {
			t.Errorf("used %+v, and %+v before", now, used)
		}
	}
	if err := p.store.Remove(t.Context(), "no/such:image"); !errors.Is(err, fault.NotFound) {
		t.Errorf("error is %v, want one of kind %v", err, fault.NotFound)
	}
}

// The kubelet looks at the disk as soon as the images that it had removed are gone, and
// evicts pods if that is not enough: there must be room by then.
func TestRemovedImageHasFreedItsRoom(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	files := make(map[string]string)
	for i := range 3000 {
		files[fmt.Sprintf("file%d", i)] = "x"
	}
	reg.push("app", "v1", buildOf(t, "gzip", v1.Image{}, tarOf(t, files)))
	img := p.pull(reg.host + "/app:v1")
	if err := p.store.Remove(t.Context(), img.ID); err != nil {
		t.Fatal(err)
	}
	if left := p.names("staging"); len(left) != 0 {
		t.Errorf("still on the disk: %v", left)
	}
}

// What a crash leaves is gone at the next start: unfinished work, and layers that
// no image got to.
func TestOpenSweeps(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	reg.push("app", "latest", build(t, "gzip", "a", "b"))
	img := p.pull(reg.host + "/app")
	p.close()
	for _, dir := range []string{"staging/layer-1/fs/d", "staging/gone-2/x", "layers/" + strings.Repeat("ab", 32) + "/fs"} {
		if err := os.MkdirAll(filepath.Join(p.root(), dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	p.open(image.Options{})
	if n := p.layers(); n != 2 {
		t.Errorf("%d layers, want 2", n)
	}
	if _, err := p.store.Get(img.ID); err != nil {
		t.Error(err)
	}
	p.swept("")
}

// After a power cut the layers committed last are verified. What is damaged goes,
// with the images that need it, and nothing else; a pull heals.
func TestUnclean(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	whole, hurt := build(t, "gzip", "whole"), build(t, "gzip", "base", "hurt")
	reg.push("whole", "latest", whole)
	reg.push("hurt", "latest", hurt)
	for name, damage := range map[string]func(fs string) error{
		"truncated file":   func(fs string) error { return os.Truncate(filepath.Join(fs, "top"), 0) },
		"missing file":     func(fs string) error { return os.Remove(filepath.Join(fs, "top")) },
		"missing tree":     func(fs string) error { return os.RemoveAll(fs) },
		"missing record":   func(fs string) error { return os.Remove(filepath.Join(filepath.Dir(fs), "layer.json")) },
		"truncated record": func(fs string) error { return os.Truncate(filepath.Join(filepath.Dir(fs), "layer.json"), 10) },
	} {
		p.pull(reg.host + "/whole")
		p.pull(reg.host + "/hurt")
		top := digestOf(hurt.plain[1])
		if err := damage(filepath.Join(p.root(), "layers", top, "fs")); err != nil {
			t.Fatal(err)
		}
		p.reopen(image.Options{Unclean: true})
		if _, err := p.store.Get(whole.id()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := p.store.Get(hurt.id()); !errors.Is(err, fault.NotFound) {
			t.Errorf("%s: the image is still there (err %v)", name, err)
		}
		if n := p.layers(); n != 1 {
			t.Errorf("%s: %d layers, want that of the whole image", name, n)
		}
		healed := p.pull(reg.host + "/hurt")
		if got := read(t, p.mount("k", healed.ID), "top"); got != "hurt" {
			t.Errorf("%s: file holds %q after the pull", name, got)
		}
		if err := p.store.RootFS().Unmount(t.Context(), "k", true); err != nil {
			t.Fatal(err)
		}
	}
}

// Of a pull that took long the layers that were done first are verified, too: they were
// committed with the rest.
func TestUncleanAfterLongPull(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	hurt := build(t, "gzip", "first", "last")
	reg.push("hurt", "latest", hurt)
	p.pull(reg.host + "/hurt")
	dir := filepath.Join(p.root(), "layers", digestOf(hurt.plain[0]))
	if err := os.Truncate(filepath.Join(dir, "fs", "layer0"), 0); err != nil {
		t.Fatal(err)
	}
	// As if it was unpacked two hours ago.
	before := time.Now().Add(-2 * time.Hour)
	record := filepath.Join(dir, "layer.json")
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
	p.reopen(image.Options{Unclean: true})
	if _, err := p.store.Get(hurt.id()); !errors.Is(err, fault.NotFound) {
		t.Errorf("the image is still there (err %v)", err)
	}
	healed := p.pull(reg.host + "/hurt")
	if got := read(t, p.mount("k", healed.ID), "layer0"); got != "first" {
		t.Errorf("file holds %q after the pull", got)
	}
}

// A disk that fills up during a pull, or a load, gives one clean error. Nothing is
// left, and with room the same call succeeds.
func TestDiskFull(t *testing.T) {
	needRoot(t)
	reg := newRegistry(t)
	p := newPlace(t, reg)
	p.close()
	if err := unix.Mount("none", p.root(), "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // before the place looks for leaks: no overlay can stand on it then
		if p.store != nil {
			p.close()
		}
		if err := unix.Unmount(p.root(), 0); err != nil {
			t.Error(err)
		}
	})
	p.open(image.Options{})
	big := buildOf(t, "gzip", v1.Image{}, tarOf(t, map[string]string{"a": "small"}), tarOf(t, map[string]string{"b": strings.Repeat("x", 6<<20)}))
	reg.push("big", "latest", big)
	full := func(err error) {
		t.Helper()
		if !errors.Is(err, unix.ENOSPC) || !errors.Is(err, fault.Unavailable) {
			t.Errorf("error is %v", err)
		}
		if n := p.layers() + len(p.names("staging")) + len(p.store.List()); n != 0 {
			t.Errorf("%d things are left", n)
		}
	}
	_, err := p.store.Pull(t.Context(), reg.host+"/big", registry.Caller{})
	full(err)
	_, err = p.store.Load(t.Context(), bytes.NewReader(ociArchive(t, big, nil)))
	full(err)
	if err := unix.Mount("none", p.root(), "", unix.MS_REMOUNT, "size=40m"); err != nil {
		t.Fatal(err)
	}
	if img := p.pull(reg.host + "/big"); img.ID != big.id() {
		t.Errorf("image is %s", img.ID)
	}
}

// The store of a new node is nobody else's: not now and then, by the order in which its
// directories happen to be made.
func TestNewStoreIsPrivate(t *testing.T) {
	for range 20 {
		st, err := os.Stat(newPlace(t).root())
		if err != nil || st.Mode().Perm() != 0o700 {
			t.Fatalf("%v, %v; want mode 0700", st, err)
		}
	}
}
