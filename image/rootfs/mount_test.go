package rootfs_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/rootfs"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/moby/sys/mountinfo"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// A root file system shows the merged layers, has its own changes, and keeps them over an
// unmount and a restart, until it is removed.
func TestMount(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	img := imagetest.BuildOf(t, "gzip", v1.Image{},
		imagetest.TarOf(t, map[string]string{"a": "1", "b": "1", "d/x": "1", "e/x": "1"}),
		imagetest.TarOf(t, map[string]string{"b": "2", ".wh.a": "", "d/.wh..wh..opq": "", "d/y": "2", "e/y": "2"}))
	reg.Push("app", "latest", img)
	id := p.Pull(reg.Host + "/app").ID
	root, second := p.Mount("one", id), p.Mount("two", id)
	if again := p.Mount("one", id); again != root {
		t.Errorf("second mount is at %s, the first at %s", again, root)
	}
	if got := tree(t, root); got != "b d d/y e e/x e/y" {
		t.Errorf("tree is %s", got)
	}
	if got := imagetest.ReadFile(t, root, "b"); got != "2" {
		t.Errorf("b holds %q", got)
	}
	if err := os.WriteFile(filepath.Join(root, "b"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(root, "e")); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, second); got != "b d d/y e e/x e/y" {
		t.Errorf("the other tree is %s", got)
	}

	if err := p.Store.RootFS().Unmount(t.Context(), "one", false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("mount point is still there (err %v)", err)
	}
	p.Reopen(image.Options{})
	if got := p.Store.RootFS().Mounts(); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("keys are %v", got)
	}
	root = p.Mount("one", id)
	if got := tree(t, root) + " " + imagetest.ReadFile(t, root, "b"); got != "b d d/y mine" {
		t.Errorf("after a restart there is %s", got)
	}
	for range 2 { // the second removal finds nothing
		for _, key := range []string{"one", "two"} {
			if err := p.Store.RootFS().Unmount(t.Context(), key, true); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := p.Store.RootFS().Mounts(); len(got) != 0 {
		t.Errorf("keys are %v", got)
	}
	if _, _, err := p.Store.RootFS().Usage("one"); !errors.Is(err, fault.NotFound) {
		t.Errorf("error is %v, want one of kind %v", err, fault.NotFound)
	}
	if _, err := p.Store.RootFS().Mount(t.Context(), "x", "sha256:"+strings.Repeat("0", 64), rootfs.MountOptions{}); !errors.Is(err, fault.NotFound) {
		t.Errorf("error is %v, want one of kind %v", err, fault.NotFound)
	}
	for _, key := range []string{"", "..", "a/b"} {
		if _, err := p.Store.RootFS().Mount(t.Context(), key, id, rootfs.MountOptions{}); !errors.Is(err, fault.Invalid) {
			t.Errorf("key %q: error is %v, want one of kind %v", key, err, fault.Invalid)
		}
	}
	if got := p.Names("rw"); len(got) != 0 {
		t.Errorf("writable layers %v are left", got)
	}
}

func tree(t *testing.T, root string) string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if path != root && err == nil {
			names = append(names, path[len(root)+1:])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, " ")
}

// The layers of a removed image stay as long as a root file system uses them, also over a
// restart, and are removed with the last one.
func TestLeases(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	img := imagetest.Build(t, "gzip", "base", "x")
	reg.Push("app", "latest", img)
	id := p.Pull(reg.Host + "/app").ID
	root := p.Mount("one", id)
	if err := p.Store.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if got := imagetest.ReadFile(t, root, "top"); got != "x" || p.Layers() != 2 {
		t.Errorf("file holds %q, on %d layers", got, p.Layers())
	}
	p.Reopen(image.Options{})
	if _, err := p.Store.Get(id); !errors.Is(err, fault.NotFound) {
		t.Errorf("error is %v, want one of kind %v", err, fault.NotFound)
	}
	if err := p.Store.RootFS().Unmount(t.Context(), "one", false); err != nil {
		t.Fatal(err)
	}
	root = p.Mount("one", id) // the image is gone, the lease is not
	if got := imagetest.ReadFile(t, root, "top"); got != "x" {
		t.Errorf("file holds %q", got)
	}
	// A pull of the image finds its layers.
	reg.Asked("")
	p.Pull(reg.Host + "/app")
	if got := reg.Asked("/blobs/"); len(got) != 1 { // the config
		t.Errorf("fetched %v", got)
	}
	if err := p.Store.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := p.Store.RootFS().Unmount(t.Context(), "one", true); err != nil {
		t.Fatal(err)
	}
	if n := p.Layers(); n != 0 {
		t.Errorf("%d layers are left", n)
	}
}

// The image has as many layers as an image may have, more than fit on a page of mount options, and one
// of them twice.
func TestManyLayers(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	var first bytes.Buffer // its mode has to be shown above the others: one more layer
	w := tar.NewWriter(&first)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "d", Typeflag: tar.TypeDir, Mode: 0o750}), w.Close()); err != nil {
		t.Fatal(err)
	}
	layers := [][]byte{first.Bytes()}
	for i := range 498 {
		layers = append(layers, imagetest.TarOf(t, map[string]string{fmt.Sprintf("d/f%d", i): "x", "last": fmt.Sprint(i)}))
	}
	layers = append(layers, layers[71])
	reg.Push("deep", "latest", imagetest.BuildOf(t, "plain", v1.Image{}, layers...))
	root, err := p.Store.RootFS().Mount(t.Context(), "k", p.Pull(reg.Host+"/deep").ID, rootfs.MountOptions{Points: true})
	if err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(filepath.Join(root, "d")); err != nil || len(entries) != 498 {
		t.Errorf("%d entries (err %v)", len(entries), err)
	}
	if got := imagetest.ReadFile(t, root, "last"); got != "70" {
		t.Errorf("last is %s", got)
	}
}

// The root directory has the mode and owner that the image gives it, and if it is opaque,
// it hides all layers below.
func TestMountRoot(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	img := imagetest.BuildOf(t, "gzip", v1.Image{},
		imagetest.TarOf(t, map[string]string{"hidden": "1"}),
		imagetest.TarOf(t, map[string]string{"./": "", ".wh..wh..opq": "", "shown": "1"}),
		imagetest.TarOf(t, map[string]string{"above": "1"}))
	reg.Push("app", "latest", img)
	root := p.Mount("k", p.Pull(reg.Host+"/app").ID)
	if got := tree(t, root); got != "above shown" {
		t.Errorf("tree is %s", got)
	}
	if fi, err := os.Stat(root); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("root is %v (err %v)", fi.Mode(), err)
	}
}

// The root directory of a volume also has the attributes from the image's layers, even if
// only a lower one has an entry for it, and the ones above have entries for other
// directories.
func TestRootOfLowerLayer(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	var base bytes.Buffer
	tw := tar.NewWriter(&base)
	for _, h := range []tar.Header{{Name: "./", Mode: 0o2711, Uid: 7, Gid: 8}, {Name: "d", Mode: 0o700}} {
		h.Typeflag = tar.TypeDir
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	for name, above := range map[string][][]byte{
		"alone":    nil,
		"file":     {imagetest.TarOf(t, map[string]string{"f": "1"})},
		"inherits": {imagetest.TarOf(t, map[string]string{"d/f": "1"}), imagetest.TarOf(t, map[string]string{"g": "1"})},
	} {
		reg.Push(name, "latest", imagetest.BuildOf(t, "gzip", v1.Image{}, append([][]byte{base.Bytes()}, above...)...))
		id := p.Pull(reg.Host + "/" + name).ID
		volume, err := p.Store.RootFS().Mount(t.Context(), name+"-ro", id, rootfs.MountOptions{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		for kind, dir := range map[string]string{"volume": volume, "root file system": p.Mount(name+"-rw", id)} {
			var st unix.Stat_t
			if err := unix.Lstat(dir, &st); err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprintf("%o %d:%d", st.Mode&0o7777, st.Uid, st.Gid); got != "2711 7:8" {
				t.Errorf("%s: the root of the %s is %s, want 2711 7:8", name, kind, got)
			}
		}
	}
}

// A directory without an entry in a layer has the attributes from a layer below, or else
// from one above; a hidden directory does not reappear.
func TestMountInheritsDirectories(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	dirs := func(modes map[string]int64, files ...string) []byte {
		var buf bytes.Buffer
		tw := tar.NewWriter(&buf)
		for _, name := range slices.Sorted(maps.Keys(modes)) {
			if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: modes[name], Uid: 7, Gid: 8}); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range files {
			if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600}); err != nil {
				t.Fatal(err)
			}
		}
		if err := tw.Close(); err != nil {
			t.Fatal(err)
		}
		return buf.Bytes()
	}
	img := imagetest.BuildOf(t, "gzip", v1.Image{},
		dirs(map[string]int64{"tmp": 0o1777, "a": 0o711, "a/b": 0o700, "new": 0o700, "opaque": 0o750, "opaque/in": 0o700, "gone": 0o700}),
		dirs(nil, "tmp/x", "a/b/c/x", "gone/x"),
		dirs(map[string]int64{"new": 0o705}, "opaque/.wh..wh..opq", "opaque/in/x", ".wh.gone"),
		dirs(nil, "new/x", "plain/x"))
	reg.Push("app", "latest", img)
	id := p.Pull(reg.Host + "/app").ID
	dir, err := p.Store.RootFS().Mount(t.Context(), "ro", id, rootfs.MountOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{p.Mount("rw", id), dir} {
		for name, want := range map[string]string{
			"tmp": "1777 7:8", "a": "711 7:8", "a/b": "700 7:8", "a/b/c": "755 0:0", "new": "705 7:8",
			"opaque": "750 7:8", "opaque/in": "755 0:0", "plain": "755 0:0", "tmp/x": "600 0:0", "a/b/c/x": "600 0:0",
		} {
			var st unix.Stat_t
			if err := unix.Lstat(filepath.Join(root, name), &st); err != nil {
				t.Errorf("%s: %v", name, err)
			} else if got := fmt.Sprintf("%o %d:%d", st.Mode&0o7777, st.Uid, st.Gid); got != want {
				t.Errorf("%s is %s, want %s", name, got, want)
			}
		}
		if _, err := os.Lstat(filepath.Join(root, "gone")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("gone is there (err %v)", err)
		}
	}
}

// A read-only mount cannot be written to, however many layers it has.
func TestMountReadOnly(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	for n := range 3 {
		var texts []string
		for i := range n {
			texts = append(texts, fmt.Sprint(i))
		}
		tag := fmt.Sprint("v", n)
		reg.Push("app", tag, imagetest.Build(t, "gzip", texts...))
		dir, err := p.Store.RootFS().Mount(t.Context(), tag, p.Pull(reg.Host+"/app:"+tag).ID, rootfs.MountOptions{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 && imagetest.ReadFile(t, dir, "top") != fmt.Sprint(n-1) {
			t.Errorf("%d layers: top is %s", n, imagetest.ReadFile(t, dir, "top"))
		}
		if err := os.WriteFile(filepath.Join(dir, "top"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("%d layers: error is %v, want %v", n, err, unix.EROFS)
		}
	}
	if _, err := p.Store.RootFS().Mount(t.Context(), "v1", p.Store.List()[0].ID, rootfs.MountOptions{}); !errors.Is(err, fault.WrongState) {
		t.Errorf("error is %v, want one of kind %v", err, fault.WrongState)
	}
}

// The usage of a writable layer follows the writes, with a delay.
func TestUsage(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "latest", imagetest.Build(t, "gzip", "x"))
	root := p.Mount("k", p.Pull(reg.Host+"/app").ID)
	size, inodes, err := p.Store.RootFS().Usage("k")
	if err != nil || inodes != 1 {
		t.Errorf("fresh layer has %d bytes, %d inodes (err %v)", size, inodes, err)
	}
	before := p.Store.FsInfo()
	if err := os.WriteFile(filepath.Join(root, "new"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if size, inodes, err = p.Store.RootFS().Usage("k"); err != nil || inodes > 1 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil || inodes != 2 || size < 1<<20 {
		t.Errorf("layer has %d bytes, %d inodes (err %v)", size, inodes, err)
	}
	if after := p.Store.FsInfo(); after.UsedBytes < before.UsedBytes+1<<20 || after.Inodes != before.Inodes+1 {
		t.Errorf("store has %+v, and %+v before", after, before)
	}
}

// Writes to a root file system are never synced, neither by the container nor by the
// unmount, for which other containers on the disk would have to wait.
func TestMountIsVolatile(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "latest", imagetest.Build(t, "gzip", "x"))
	id := p.Pull(reg.Host + "/app").ID
	root := p.Mount("k", id)
	options := func() string {
		mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(root))
		if err != nil || len(mounts) != 1 {
			t.Fatalf("%d mounts (err %v)", len(mounts), err)
		}
		return mounts[0].VFSOptions
	}
	if got := options(); !strings.Contains(got, "volatile") {
		t.Errorf("options are %s", got)
	}
	for i := range 3 { // the kernel refuses to reuse the work directory of a volatile mount
		name := filepath.Join(root, fmt.Sprint("mine", i))
		if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			t.Errorf("sync: %v", err)
		}
		if err := p.Store.RootFS().Unmount(t.Context(), "k", false); err != nil {
			t.Fatal(err)
		}
		p.Mount("k", id)
		if got := imagetest.ReadFile(t, root, fmt.Sprint("mine", i)); got != "x" {
			t.Errorf("file holds %q", got)
		}
	}
}

// After a reboot, what containers had written is void, even if all of it seems to be there:
// it is not mounted or read any more, and can be removed.
func TestWritesAreVoidAfterReboot(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "latest", imagetest.Build(t, "gzip", "x"))
	id := p.Pull(reg.Host + "/app").ID
	root := p.Mount("k", id)
	volume, err := p.Store.RootFS().Mount(t.Context(), "volume", id, rootfs.MountOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"k", "volume"} {
		if err := p.Store.RootFS().Unmount(t.Context(), key, false); err != nil {
			t.Fatal(err)
		}
	}
	boot, err := kernel.BootID()
	if err != nil {
		t.Fatal(err)
	}
	lease := filepath.Join(p.Root(), "rw", "k", "lease.json")
	data, err := os.ReadFile(lease)
	if err != nil || !bytes.Contains(data, []byte(boot)) {
		t.Fatalf("lease is %s (err %v)", data, err)
	}
	if err := os.WriteFile(lease, bytes.Replace(data, []byte(boot), []byte("another"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Reopen(image.Options{})
	if _, err := p.Store.RootFS().Mount(t.Context(), "k", id, rootfs.MountOptions{}); !errors.Is(err, fault.WrongState) {
		t.Errorf("error is %v, want one of kind %v", err, fault.WrongState)
	}
	if _, err := p.Store.RootFS().Diff(t.Context(), "k", io.Discard); !errors.Is(err, fault.WrongState) {
		t.Errorf("error of the diff is %v, want one of kind %v", err, fault.WrongState)
	}
	// A volume has no writes, and can be mounted again.
	if again, err := p.Store.RootFS().Mount(t.Context(), "volume", id, rootfs.MountOptions{ReadOnly: true}); err != nil || again != volume {
		t.Errorf("volume is at %s, was at %s (err %v)", again, volume, err)
	}
	for _, key := range []string{"k", "volume"} {
		if err := p.Store.RootFS().Unmount(t.Context(), key, true); err != nil {
			t.Error(err)
		}
	}
	if got := p.Names("rw"); len(got) != 0 {
		t.Errorf("%v are left", got)
	}
	p.Mount("k", id) // the key can be used again
}

// The page cache of a layer survives when a container of the image is started soon after
// the last one was removed.
func TestPageCacheOutlivesContainer(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	text := strings.Repeat("program ", 4096)
	reg.Push("app", "latest", imagetest.Build(t, "gzip", text))
	id := p.Pull(reg.Host + "/app").ID
	cached := func(root string) bool {
		f, err := os.Open(filepath.Join(root, "top"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		memory, err := unix.Mmap(int(f.Fd()), 0, len(text), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Munmap(memory)
		pages := make([]byte, len(text)/os.Getpagesize())
		_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&memory[0])), uintptr(len(memory)), uintptr(unsafe.Pointer(&pages[0])))
		if errno != 0 {
			t.Fatal(errno)
		}
		return !slices.ContainsFunc(pages, func(b byte) bool { return b&1 == 0 })
	}
	root := p.Mount("one", id)
	if got := imagetest.ReadFile(t, root, "top"); got != text {
		t.Fatalf("file holds %d bytes", len(got))
	}
	if err := p.Store.RootFS().Unmount(t.Context(), "one", true); err != nil {
		t.Fatal(err)
	}
	if !cached(p.Mount("two", id)) {
		t.Error("the file is not in the page cache any more")
	}
	if err := p.Store.RootFS().Unmount(t.Context(), "two", true); err != nil {
		t.Fatal(err)
	}
	if err := p.Store.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}

// A layer whose image went first is not kept for a later container: its space on the disk
// would not be free.
func TestRemovedLayerIsNotKept(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "latest", imagetest.Build(t, "gzip", "text"))
	id := p.Pull(reg.Host + "/app").ID
	p.Mount("one", id)
	if err := p.Store.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := p.Store.RootFS().Unmount(t.Context(), "one", true); err != nil {
		t.Fatal(err)
	}
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range descriptors {
		var st unix.Statfs_t
		if err := unix.Statfs("/proc/self/fd/"+d.Name(), &st); err == nil && st.Type == unix.EROFS_SUPER_MAGIC_V1 {
			t.Errorf("descriptor %s keeps a layer", d.Name())
		}
	}
}

// What a container that was started without its root file system made in the mount point, on the
// host, does not keep the root file system from being removed. What it led to stays.
func TestRemoveWithFilesInTheMountPoint(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "latest", imagetest.BuildOf(t, "gzip", v1.Image{}, imagetest.TarOf(t, map[string]string{"a": "1"})))
	root := p.Mount("one", p.Pull(reg.Host+"/app").ID)
	if err := unix.Unmount(root, 0); err != nil {
		t.Fatal(err)
	}
	kept := t.TempDir()
	mounted := filepath.Join(root, "mounted")
	for _, err := range []error{
		os.WriteFile(filepath.Join(kept, "file"), nil, 0o600),
		os.MkdirAll(filepath.Join(root, "etc"), 0o755),
		os.WriteFile(filepath.Join(root, "etc", "hosts"), nil, 0o600),
		os.Symlink(kept, filepath.Join(root, "link")),
		os.Mkdir(mounted, 0o755),
		unix.Mount(kept, mounted, "", unix.MS_BIND, ""),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	remove := func() error { return p.Store.RootFS().Unmount(t.Context(), "one", true) }
	if err := remove(); !errors.Is(err, unix.EBUSY) {
		t.Errorf("with a foreign mount in it: %v, want %v", err, unix.EBUSY)
	}
	if err := unix.Unmount(mounted, 0); err != nil {
		t.Fatal(err)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Dir(root)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the mount point is still there (err %v)", err)
	}
	if _, err := os.Stat(filepath.Join(kept, "file")); err != nil {
		t.Error(err)
	}
}
