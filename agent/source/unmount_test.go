package source

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/test/testenv"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// A directory whose file system was unmounted is readable and empty. That must not end its pods.
func TestUnmountedDirectory(t *testing.T) {
	testenv.NeedRoot(t, "it mounts a file system")
	dir := t.TempDir()
	mount := func() {
		t.Helper()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "a.yaml"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	unmount := func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
	}
	d := &Dir{Path: dir, Log: slog.New(slog.DiscardHandler), Decode: func(string, []byte, bool) ([]manifest.Object, manifest.Errors, error) {
		return []manifest.Object{&v1.Pod{}}, nil, nil
	}}
	look := func() (n int, err error) {
		files, _, err := d.scan()
		return len(files), err
	}
	mount()
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) }) // in case the test failed
	if n, err := look(); n != 1 || err != nil {
		t.Fatalf("%d files, %v", n, err)
	}
	unmount()
	for range 2 {
		if n, err := look(); err == nil {
			t.Errorf("an unmounted directory reports %d files", n)
		}
	}
	mount()
	if n, err := look(); n != 1 || err != nil {
		t.Errorf("mounted again: %d files, %v", n, err)
	}
	if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	if n, err := look(); n != 0 || err != nil {
		t.Errorf("the last file was removed: %d files, %v", n, err)
	}
	unmount()
	if n, err := look(); n != 0 || err != nil {
		t.Errorf("unmounted when it was empty: %d files, %v", n, err)
	}
}
