package rootfs_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/rootfs"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/userns"
	"github.com/crisp-cri/crisp/test/imagetest"
	"github.com/crisp-cri/crisp/test/testenv"
	"github.com/moby/sys/mountinfo"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// owner returns the "uid:gid" of a path.
func owner(t *testing.T, path ...string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(path...), &st); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d:%d", st.Uid, st.Gid)
}

// An ID-mapped root file system has the owners of its user namespace, in its layers and in
// what is written. The layers themselves, and other containers of them, are not affected.
func TestMountMapped(t *testing.T) {
	testenv.Need(t, "idmap")
	reg := imagetest.NewRegistry(t)
	p := imagetest.NewPlace(t, reg)
	reg.Push("app", "latest", imagetest.BuildOf(t, "gzip", v1.Image{},
		imagetest.TarOf(t, map[string]string{"a": "1", "d/": "", "d/x": "1"}), imagetest.TarOf(t, map[string]string{"b": "2"})))
	id := p.Pull(reg.Host + "/app").ID
	if err := os.Chmod(filepath.Dir(p.Dir), 0o711); err != nil { // the test's own directory
		t.Fatal(err)
	}
	if err := p.Store.RootFS().CheckIDMap(); err != nil {
		t.Fatal(err)
	}
	m := rootfs.IDMap{IDs: userns.Map{UID: userns.Range{Host: 200000, Length: 1000}, GID: userns.Range{Host: 300000, Length: 1000}}}
	ns, err := userns.Open(m.IDs)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	m.UserNS = fmt.Sprintf("/proc/self/fd/%d", ns.Fd())
	mount := func(key string, readOnly bool) string {
		t.Helper()
		dir, err := p.Store.RootFS().Mount(t.Context(), key, id, rootfs.MountOptions{ReadOnly: readOnly, IDs: &m})
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}

	root, plain, volume := mount("one", false), p.Mount("two", id), mount("three", true)
	for _, dir := range []string{root, volume} {
		for _, name := range []string{"a", "b", "d", "d/x"} {
			if got := owner(t, dir, name); got != "200000:300000" {
				t.Errorf("%s belongs to %s", name, got)
			}
		}
	}
	if got := owner(t, root); got != "200000:300000" {
		t.Errorf("the root belongs to %s", got)
	}
	// A change to a layer's file copies the file up with the same owner.
	if err := os.Chmod(filepath.Join(root, "d/x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(root, "d/x"), filepath.Join(p.Root(), "rw", "one", "fs", "d/x")} {
		if got := owner(t, path); got != "200000:300000" {
			t.Errorf("after a change %s belongs to %s", path, got)
		}
	}
	if got := owner(t, plain, "d/x"); got != "0:0" {
		t.Errorf("without a map d/x belongs to %s", got)
	}
	if err := os.WriteFile(filepath.Join(volume, "c"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("write to a read-only one: %v", err)
	}

	// The state after a restart with a lost mount.
	if err := p.Store.RootFS().Unmount(t.Context(), "one", false); err != nil {
		t.Fatal(err)
	}
	p.Reopen(image.Options{})
	if root = mount("one", false); owner(t, root, "b") != "200000:300000" {
		t.Errorf("after a restart b belongs to %s", owner(t, root, "b"))
	}
	left, err := mountinfo.GetMounts(mountinfo.PrefixFilter(p.Root()))
	if err != nil || len(left) > 0 {
		t.Errorf("%d mounts of layers are left, %v", len(left), err)
	}

	m.UserNS = filepath.Join(p.Dir, "no such namespace")
	if _, err := p.Store.RootFS().Mount(t.Context(), "four", id, rootfs.MountOptions{IDs: &m}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the user namespace: %v", err)
	}
	m.UserNS = "/proc/self/ns/net"
	if _, err := p.Store.RootFS().Mount(t.Context(), "four", id, rootfs.MountOptions{IDs: &m}); err == nil {
		t.Error("a network namespace was taken for a user namespace")
	}
	if got := fmt.Sprint(p.Store.RootFS().Mounts()); got != "[one three two]" {
		t.Errorf("keys are %s", got)
	}
}

// Support for ID mappings is determined by a trial, and the error says why they do not
// work.
func TestCheckIDMap(t *testing.T) {
	p := imagetest.NewPlace(t)
	if err := os.Chmod(filepath.Dir(p.Dir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := p.Store.RootFS().CheckIDMap(); !errors.Is(err, fault.WrongState) || !strings.Contains(err.Error(), filepath.Dir(p.Dir)) {
		t.Errorf("below a directory of mode 0700: %v", err)
	}
	if left := p.Names("staging"); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}
