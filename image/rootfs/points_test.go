package rootfs_test

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/rootfs"
	"github.com/crisp-cri/crisp/test/imagetest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// A root file system has what containers mount on, without a change of its own that would be made,
// measured, committed and removed with each container; and what the image has there stays the image's,
// or its link would lead elsewhere.
func TestMountPoints(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("bare", "latest", imagetest.BuildOf(t, "gzip", v1.Image{}, imagetest.TarOf(t, map[string]string{"a": "1"})))
	var links bytes.Buffer
	tw := tar.NewWriter(&links)
	for _, h := range []tar.Header{
		{Name: "conf", Typeflag: tar.TypeDir, Mode: 0o750}, {Name: "etc", Typeflag: tar.TypeSymlink, Linkname: "conf"},
		{Name: "proc", Typeflag: tar.TypeReg, Mode: 0o600}, {Name: "dev", Typeflag: tar.TypeDir, Mode: 0o700},
	} {
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	reg.Push("odd", "latest", imagetest.BuildOf(t, "gzip", v1.Image{}, links.Bytes()))

	mount := func(key, image string, points bool) string {
		t.Helper()
		root, err := p.Store.RootFS().Mount(t.Context(), key, p.Pull(reg.Host+"/"+image).ID, rootfs.MountOptions{Points: points})
		if err != nil {
			t.Fatal(err)
		}
		return root
	}
	const bare = "a dev etc etc/hostname etc/hosts etc/resolv.conf proc sys"
	if got := tree(t, mount("bare", "bare", true)); got != bare {
		t.Errorf("without mount points, the image has %s", got)
	}
	if got := tree(t, mount("none", "bare", false)); got != "a" {
		t.Errorf("a root file system that wants none has %s", got)
	}
	odd := mount("odd", "odd", true)
	if got := tree(t, odd); got != "conf dev etc proc sys" {
		t.Errorf("the image with a link has %s", got)
	}
	for name, want := range map[string]string{"conf": "drwxr-x---", "etc": "Lrwxrwxrwx", "proc": "-rw-------", "dev": "drwx------", "sys": "drwxr-xr-x"} {
		if info, err := os.Lstat(filepath.Join(odd, name)); err != nil || info.Mode().String() != want {
			t.Errorf("the image's %s is %v (%v), want %s", name, info.Mode(), err, want)
		}
	}
	var changes bytes.Buffer
	deleted, err := p.Store.RootFS().Diff(t.Context(), "bare", &changes)
	if err != nil || len(deleted) > 0 {
		t.Errorf("nothing was changed, but removed: %q, %v", deleted, err)
	}
	for tr := tar.NewReader(&changes); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil || filepath.Clean(h.Name) != "." {
			t.Fatalf("nothing was changed, but %v, %v", h, err)
		}
	}

	// A power cut may have taken some of them.
	if err := os.RemoveAll(filepath.Join(p.Root(), "points", "etc")); err != nil {
		t.Fatal(err)
	}
	if err := p.Store.RootFS().Unmount(t.Context(), "bare", true); err != nil {
		t.Fatal(err)
	}
	p.Reopen(image.Options{})
	if got := tree(t, mount("again", "bare", true)); got != bare {
		t.Errorf("after a power cut, the image has %s", got)
	}
}
