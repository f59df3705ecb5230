package selinux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/tree"
	"github.com/crisp-cri/crisp/test/testenv"
	"github.com/crisp-cri/crisp/test/treetest"
)

// Every policy for containers has these types; with SELinux enabled no others can be set.
const (
	want      = "system_u:object_r:container_file_t:s0:c1,c2"
	untouched = "system_u:object_r:container_ro_file_t:s0"
	other     = "system_u:object_r:container_ro_file_t:s0:c3"
)

// volume makes a volume with a symlink to outside.
func volume(t *testing.T) (dir, outside string) {
	testenv.NeedRoot(t, "labels are in security.selinux")
	dir, outside = t.TempDir(), filepath.Join(t.TempDir(), "outside")
	err := errors.Join(
		os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755), os.WriteFile(filepath.Join(dir, "a", "b", "f"), nil, 0o644),
		os.WriteFile(outside, nil, 0o644), os.Symlink(outside, filepath.Join(dir, "a", "out")),
		os.Symlink("/nowhere", filepath.Join(dir, "a", "dangling")), unix.Mkfifo(filepath.Join(dir, "pipe"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Lsetxattr(outside, xattr, []byte(untouched), 0); err != nil {
		t.Skip("the file system has no labels: ", err)
	}
	return dir, outside
}

func labelOf(t *testing.T, path string) string {
	t.Helper()
	buf := make([]byte, 256)
	n, err := unix.Lgetxattr(path, xattr, buf)
	if err != nil {
		return "none: " + err.Error()
	}
	return strings.TrimRight(string(buf[:n]), "\x00")
}

func always() error { return nil }

func TestRelabel(t *testing.T) {
	dir, outside := volume(t)
	if err := Relabel(t.Context(), dir, want, always); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".", "a", "a/b", "a/b/f", "a/out", "a/dangling", "pipe"} {
		if got := labelOf(t, filepath.Join(dir, name)); got != want {
			t.Errorf("%s has label %s", name, got)
		}
	}
	if got := labelOf(t, outside); got != untouched {
		t.Errorf("what a symlink leads to has label %s", got)
	}

	// A volume whose top directory has the right label is not walked.
	inner := filepath.Join(dir, "a", "b", "f")
	if err := unix.Lsetxattr(inner, xattr, []byte(other), 0); err != nil {
		t.Fatal(err)
	}
	if err := Relabel(t.Context(), dir, want, func() error { return errors.New("walked") }); err != nil {
		t.Fatal(err)
	}
	if got := labelOf(t, inner); got != other {
		t.Errorf("a volume with the right label was relabelled: a file has %s", got)
	}

	// A single file is a volume too.
	if err := Relabel(t.Context(), outside, want, always); err != nil || labelOf(t, outside) != want {
		t.Errorf("a file: %v, label %s", err, labelOf(t, outside))
	}
}

// An interrupted walk must be repeated: the top shows that it did not finish.
func TestRelabelInterrupted(t *testing.T) {
	dir, _ := volume(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Relabel(ctx, dir, want, always); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that ended: %v", err)
	}
	gone := errors.New("the sandbox is gone")
	asked := 0
	err := Relabel(t.Context(), dir, want, func() error {
		if asked++; asked > 2 {
			return gone
		}
		return nil
	})
	if !errors.Is(err, gone) {
		t.Errorf("for a sandbox that ended: %v", err)
	}
	if got := labelOf(t, dir); got == want {
		t.Error("the top has the label of a walk that did not end")
	}
	if err := Relabel(t.Context(), dir, want, always); err != nil || labelOf(t, dir) != want || labelOf(t, dir+"/a/b/f") != want {
		t.Errorf("the second walk: %v", err)
	}
}

// A pod may make its volume arbitrarily deep: all of it is labelled, with few descriptors.
func TestRelabelDeep(t *testing.T) {
	volume(t) // or skip
	dir := t.TempDir()
	const deep = 3000
	treetest.Deep(t, dir, "d", deep)
	before, most := treetest.Descriptors(t), 0
	asked := 0
	err := Relabel(t.Context(), dir, want, func() error {
		if asked++; asked%500 == 0 {
			most = max(most, treetest.Descriptors(t))
		}
		return nil
	})
	if err != nil || asked != deep+1 {
		t.Errorf("%d of %d directories were walked, err %v", asked, deep+1, err)
	}
	if most-before > 100 {
		t.Errorf("%d descriptors were open", most-before)
	}
	labelled := 0
	err = tree.Walk(t.Context(), dir, tree.Options{}, func(f *tree.File) error {
		buf := make([]byte, 256)
		if n, err := unix.Lgetxattr(fmt.Sprintf("/proc/self/fd/%d/%s", f.Dir, f.Name), xattr, buf); f.IsTop() || err == nil && strings.TrimRight(string(buf[:n]), "\x00") == want {
			labelled++
		}
		return nil
	})
	if err != nil || labelled != 2*deep+1 {
		t.Errorf("%d of %d files are labelled, err %v", labelled, 2*deep+1, err)
	}
	if err := tree.Remove(t.Context(), filepath.Join(dir, "d")); err != nil {
		t.Error(err)
	}
}

func TestRefuse(t *testing.T) {
	for path, ok := range map[string]bool{
		"/": false, "/usr": false, "/usr/": false, "/etc/.": false, "/proc/1/root": false, "/sys/fs/cgroup": false, "/var/lib": false,
		"/var/lib/kubelet/pods/x/volumes/y": true, "/data": true, "/home/me/data": true, "/sysdata": true,
	} {
		if err := Refuse(path); (err == nil) != ok || err != nil && !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
