package rootfs_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/crisp-cri/crisp/test/treetest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// The changes of a container's root file system can be applied to another one: files that
// were written, changed, linked and removed, and directories that were replaced.
func TestDiffAndApply(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "latest", imagetest.BuildOf(t, "gzip", v1.Image{},
		imagetest.TarOf(t, map[string]string{"a": "1", "b": "1", "gone/x": "1", "new/old": "1", "new/kept": "1", "d/x": "1"}),
		imagetest.TarOf(t, map[string]string{"new/high": "2"})))
	id := p.Pull(reg.Host + "/app").ID
	from, to := p.Mount("from", id), p.Mount("to", id)

	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.Join(from, name) }
	do(os.WriteFile(in("b"), []byte("changed"), 0o640))
	do(os.Chown(in("b"), 12, 34))
	do(os.Remove(in("a")))
	do(os.RemoveAll(in("gone")))
	do(os.RemoveAll(in("new")))
	do(os.Mkdir(in("new"), 0o711)) // opaque in the writable layer
	do(os.WriteFile(in("new/kept"), []byte("again"), 0o600))
	do(os.WriteFile(in("d/.wh.x"), []byte("no whiteout"), 0o600))
	do(os.WriteFile(in("one"), []byte("linked"), 0o600))
	do(os.Link(in("one"), in("two")))
	do(os.Symlink("/etc/passwd", in("link")))
	do(unix.Mkfifo(in("pipe"), 0o600))
	do(unix.Setxattr(in("one"), "user.note", []byte("hello"), 0))

	var diff bytes.Buffer
	deleted, err := p.Store.RootFS().Diff(t.Context(), "from", &diff)
	do(err)
	if want := []string{"/a", "/gone", "/new/high", "/new/old"}; !slices.Equal(deleted, want) {
		t.Errorf("removed names are %v, want %v", deleted, want)
	}
	do(p.Store.RootFS().Apply(t.Context(), "to", &diff, deleted))
	if got, want := describe(t, to), describe(t, from); got != want {
		t.Errorf("the tree is\n%s\nwant\n%s", got, want)
	}
	if got := imagetest.ReadFile(t, to, "new/kept") + imagetest.ReadFile(t, to, "b") + imagetest.ReadFile(t, to, "d/.wh.x"); got != "againchangedno whiteout" {
		t.Errorf("files hold %q", got)
	}
	value := make([]byte, 8)
	if n, err := unix.Getxattr(filepath.Join(to, "two"), "user.note", value); err != nil || string(value[:n]) != "hello" {
		t.Errorf("attribute is %q (err %v)", value[:max(n, 0)], err)
	}
	for _, key := range []string{"from", "to"} {
		do(p.Store.RootFS().Unmount(t.Context(), key, true))
	}
}

// A symlink in an image is resolved within the image: the host's file at its target must
// not get into a checkpoint.
func TestDiffFollowsNoLinkOfTheImage(t *testing.T) {
	secret := t.TempDir()
	if err := os.WriteFile(filepath.Join(secret, "name"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, hdr := range []tar.Header{{Typeflag: tar.TypeSymlink, Name: "a", Linkname: secret}, {Typeflag: tar.TypeSymlink, Name: "up", Linkname: "/"}} {
		if err := tw.WriteHeader(&hdr); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "latest", imagetest.BuildOf(t, "gzip", v1.Image{}, buf.Bytes()))
	root := p.Mount("k", p.Pull(reg.Host+"/app").ID)
	for _, dir := range []string{"a", "up"} {
		if err := errors.Join(os.Remove(filepath.Join(root, dir)), os.Mkdir(filepath.Join(root, dir), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	var diff bytes.Buffer
	deleted, err := p.Store.RootFS().Diff(t.Context(), "k", &diff)
	if err != nil || len(deleted) != 0 {
		t.Errorf("removed names are %v, want none (err %v)", deleted, err)
	}
}

// A tree too deep for a path gives a short error.
func TestDiffOfDeepTree(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "latest", imagetest.Build(t, "gzip", "x"))
	treetest.Deep(t, p.Mount("k", p.Pull(reg.Host+"/app").ID), "d", 3000)
	_, err := p.Store.RootFS().Diff(t.Context(), "k", io.Discard)
	if !errors.Is(err, fault.Invalid) || len(err.Error()) > 400 {
		t.Errorf("error is %.500v", err)
	}
}

// describe lists a tree with kinds, modes and owners.
func describe(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		link, _ := os.Readlink(path)
		fmt.Fprintf(&b, "%o %d:%d %s %s\n", st.Mode, st.Uid, st.Gid, strings.TrimPrefix(path, root), link)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A diff from an untrusted archive changes nothing outside of the root file system.
func TestApplyHostile(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "latest", imagetest.BuildOf(t, "gzip", v1.Image{}, imagetest.TarOf(t, map[string]string{"a": "1"})))
	id := p.Pull(reg.Host + "/app").ID
	root := p.Mount("c", id)
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(root, "out")); err != nil {
		t.Fatal(err)
	}
	empty := func() *bytes.Buffer { return new(bytes.Buffer) }
	for _, name := range []string{"../" + victim, "/../../..", "/", "."} {
		err := p.Store.RootFS().Apply(t.Context(), "c", empty(), []string{name})
		if !errors.Is(err, fault.Invalid) && name != "/../../.." {
			t.Errorf("removal of %q: error is %v, want one of kind %v", name, err, fault.Invalid)
		}
	}
	// A path through a link that leads out, and the victim's own path, are both resolved in
	// the root file system, where they do not exist.
	if err := p.Store.RootFS().Apply(t.Context(), "c", empty(), []string{"/out/victim", victim}); err != nil {
		t.Error(err)
	}
	for _, entry := range []tar.Header{
		{Name: "../escaped", Typeflag: tar.TypeReg, Mode: 0o600},
		{Name: "x", Typeflag: tar.TypeLink, Linkname: "../../" + victim},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := errors.Join(w.WriteHeader(&entry), w.Close()); err != nil {
			t.Fatal(err)
		}
		if err := p.Store.RootFS().Apply(t.Context(), "c", &b, nil); !errors.Is(err, fault.Invalid) {
			t.Errorf("entry %q: error is %v, want one of kind %v", entry.Name, err, fault.Invalid)
		}
	}
	if data, err := os.ReadFile(victim); err != nil || string(data) != "mine" {
		t.Errorf("the victim holds %q (err %v)", data, err)
	}
	if got := tree(t, root); !strings.HasPrefix(got, "a") {
		t.Errorf("tree is %s", got)
	}
	if err := p.Store.RootFS().Unmount(t.Context(), "c", true); err != nil {
		t.Fatal(err)
	}
}
