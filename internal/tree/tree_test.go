package tree_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/tree"
	"github.com/crisp-cri/crisp/test/testenv"
	"github.com/crisp-cri/crisp/test/treetest"
)

// A container can nest directories as deep as its disk has inodes. A walk that took a descriptor or
// a stack frame for each would crash the daemon.
func TestDeepTreeIsWalkedAndRemoved(t *testing.T) {
	for _, sorted := range []bool{false, true} {
		t.Run(fmt.Sprintf("sorted=%v", sorted), func(t *testing.T) {
			dir := treetest.Dir(t)
			n := 20_000
			switch {
			case testing.Short():
				n = 4_000
			case !sorted:
				n = 200_000
			}
			treetest.Deep(t, dir, "d", n)
			before, most := treetest.Descriptors(t), 0
			files, dirs, left := 0, 0, 0
			err := tree.Walk(t.Context(), dir, tree.Options{Sorted: sorted, Leave: func(*tree.File) error { left++; return nil }}, func(f *tree.File) error {
				if !f.IsDir() {
					files++
					return nil
				}
				if dirs++; dirs%1_000 == 0 {
					most = max(most, treetest.Descriptors(t))
				}
				return nil
			})
			if err != nil || files != n || dirs != n+1 || left != n+1 {
				t.Errorf("saw %d files and %d directories, left %d, err %v; want %d, %[5]d+1", files, dirs, left, err, n)
			}
			if most-before > 100 {
				t.Errorf("%d descriptors were open", most-before)
			}
			if err := tree.Remove(t.Context(), filepath.Join(dir, "d")); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(filepath.Join(dir, "d")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("after Remove: %v", err)
			}
			if now := treetest.Descriptors(t); now != before {
				t.Errorf("%d descriptors more than before", now-before)
			}
		})
	}
}

// The walk returns to directories that it has closed, and continues to read them where it stopped.
func TestWalkSeesAllOfWideAndDeepTree(t *testing.T) {
	for _, sorted := range []bool{false, true} {
		dir := treetest.Dir(t)
		want := []string{""}
		at := ""
		for depth := range 100 { // deeper than the number of directories that are kept open
			for i := range 300 { // more than one getdents call returns
				name := fmt.Sprintf("%s%03d-%03d-%s", at, depth, i, strings.Repeat("x", 20))
				want = append(want, name)
				if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			at += "150d/" // in the middle of the names, in some order
			want = append(want, strings.TrimSuffix(at, "/"))
			if err := os.Mkdir(filepath.Join(dir, at), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		err := tree.Walk(t.Context(), dir, tree.Options{Sorted: sorted}, func(f *tree.File) error {
			got = append(got, f.Path())
			if f.PathLen() != len(f.Path()) && f.Path() != "" {
				t.Errorf("path of %d bytes is shown as %d", len(f.Path()), f.PathLen())
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("sorted=%v: saw %d names, want %d", sorted, len(got), len(want))
		}
		if err := tree.Remove(t.Context(), dir); err != nil {
			t.Error(err)
		}
	}
}

func TestSortedWalkIsInOrder(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"c", "a/z", "a/b/c", "b", "a.x"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	note := func(sign string) func(f *tree.File) error {
		return func(f *tree.File) error { got = append(got, sign+f.Path()); return nil }
	}
	err := tree.Walk(t.Context(), dir, tree.Options{Sorted: true, Leave: note("-")}, func(f *tree.File) error {
		got = append(got, "+"+f.Path())
		if f.Name == "b" && f.PathLen() > 1 {
			return fs.SkipDir
		}
		return nil
	})
	want := []string{"+", "+a", "+a/b", "+a/z", "-a/z/", "-a/", "+a.x", "-a.x/", "+b", "-b/", "+c", "-c/", "-"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("err %v, %s", err, cmp.Diff(want, got))
	}
}

// A container may replace or move a directory while it is being walked: the walk must not leave the
// tree.
func TestDirectoryMovedAwayMeanwhile(t *testing.T) {
	dir, in, out := shuffled(t)
	deep := filepath.Join(in, strings.Repeat("d/", 99)+"d")
	var names []string
	files, after := 0, false
	err := tree.Walk(t.Context(), in, tree.Options{Sorted: true}, func(f *tree.File) error {
		names = append(names, f.Name)
		if files++; files == 250 { // deeper, so that the moved directory is closed
			return errors.Join(os.Rename(deep, filepath.Join(out, "moved")), os.Symlink(out, deep))
		}
		after = after || f.Path() == "z"
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if slices.Contains(names, "precious") {
		t.Error("the walk has left the tree")
	}
	if !after {
		t.Error("the walk did not return to the files at the top")
	}
	if err := tree.Remove(t.Context(), in); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(out, "precious")); err != nil {
		t.Errorf("a file outside of the tree was removed: %v", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("left %v, err %v", left, err)
	}
}

func TestRemoveWhileDirectoriesAreMoved(t *testing.T) {
	_, in, out := shuffled(t)
	deep := filepath.Join(in, strings.Repeat("d/", 99)+"d")
	ctx, cancel := context.WithCancel(t.Context())
	moved := make(chan int)
	go func() {
		n := 0
		for ctx.Err() == nil {
			if os.Rename(deep, filepath.Join(out, "moved")) == nil {
				n++
				_ = os.Symlink(out, deep)
				_ = os.Remove(deep)
				_ = os.Rename(filepath.Join(out, "moved"), deep)
			}
		}
		moved <- n
	}()
	err := tree.Remove(t.Context(), in)
	cancel()
	t.Logf("%d moves, err %v", <-moved, err) // depends on the moves
	if _, err := os.Stat(filepath.Join(out, "precious")); err != nil {
		t.Errorf("a file outside of the tree was removed: %v", err)
	}
	if err := tree.Remove(t.Context(), in); err != nil { // nothing is moved any more
		t.Error(err)
	}
}

// shuffled makes the directory in, with a deep tree and a file z, and the directory out.
func shuffled(t *testing.T) (dir, in, out string) {
	dir = treetest.Dir(t)
	in, out = filepath.Join(dir, "in"), filepath.Join(dir, "out")
	if err := errors.Join(os.Mkdir(in, 0o700), os.MkdirAll(filepath.Join(out, "precious"), 0o700)); err != nil {
		t.Fatal(err)
	}
	treetest.Deep(t, in, "d", 1000)
	if err := os.WriteFile(filepath.Join(in, "z"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, in, out
}

// Errors are short enough to read in a log.
func TestErrorsOfDeepTreesAreShort(t *testing.T) {
	dir := treetest.Dir(t)
	treetest.Deep(t, dir, strings.Repeat("d", 200), 1000)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	boom := errors.New("boom")
	n := 0
	err := tree.Walk(ctx, dir, tree.Options{}, func(f *tree.File) error {
		if n++; n == 1500 {
			return boom
		}
		return nil
	})
	if !errors.Is(err, boom) {
		t.Errorf("err %v", err)
	}
	cancel()
	if err := tree.Remove(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("err %v, want that of the context", err)
	}
	testenv.NeedRoot(t, "a directory is made immutable")
	t.Run("immutable", func(t *testing.T) {
		disk := t.TempDir() // a tmpfs may not support these flags
		treetest.Deep(t, disk, strings.Repeat("d", 200), 100)
		fd, err := unix.Open(disk, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		for range 100 {
			if err == nil {
				var next int
				next, err = unix.Openat(fd, strings.Repeat("d", 200), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
				unix.Close(fd)
				fd = next
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Mkdirat(fd, "in", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, unix.STATX_ATTR_IMMUTABLE); err != nil {
			t.Skipf("no immutable files here: %v", err)
		}
		err = tree.Remove(t.Context(), disk)
		if !errors.Is(err, unix.EPERM) || len(err.Error()) > 400 {
			t.Errorf("err of %d bytes: %.600v", len(fmt.Sprint(err)), err)
		}
		if err := unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, 0); err != nil {
			t.Fatal(err)
		}
		if err := tree.Remove(t.Context(), disk); err != nil {
			t.Error(err)
		}
	})
}

// File systems mounted below a tree are not the tree's, and are not emptied.
func TestRemoveEntersNoMount(t *testing.T) {
	testenv.NeedRoot(t, "it mounts")
	dir, data := t.TempDir(), t.TempDir()
	at := filepath.Join(dir, "top", "a", "b")
	if err := errors.Join(os.MkdirAll(at, 0o700), os.MkdirAll(filepath.Join(dir, "top", "c"), 0o700), os.WriteFile(filepath.Join(data, "precious"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	// A bind mount of the same file system, which has the same device number.
	if err := unix.Mount(data, at, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	for _, mounts := range []bool{false, true} {
		var got []string
		err := tree.Walk(t.Context(), dir, tree.Options{Sorted: true, Mounts: mounts}, func(f *tree.File) error {
			got = append(got, f.Path())
			return nil
		})
		want := []string{"", "top", "top/a", "top/a/b"}
		if mounts {
			want = append(want, "top/a/b/precious")
		}
		if want = append(want, "top/c"); err != nil || !slices.Equal(got, want) {
			t.Errorf("mounts=%v: err %v, %s", mounts, err, cmp.Diff(want, got))
		}
	}
	if err := tree.Remove(t.Context(), filepath.Join(dir, "top")); !errors.Is(err, unix.EBUSY) {
		t.Errorf("err %v, want EBUSY", err)
	}
	if _, err := os.Stat(filepath.Join(data, "precious")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "top", "c")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the rest was not removed: %v", err)
	}
	// If the argument itself is a mount, it is emptied and stays.
	if err := tree.Remove(t.Context(), at); !errors.Is(err, unix.EBUSY) {
		t.Errorf("err %v, want EBUSY", err)
	}
	if names, err := os.ReadDir(data); err != nil || len(names) != 0 {
		t.Errorf("left in the mount: %v, err %v", names, err)
	}
	if err := unix.Unmount(at, 0); err != nil {
		t.Fatal(err)
	}
	if err := tree.Remove(t.Context(), filepath.Join(dir, "top")); err != nil {
		t.Error(err)
	}
}

func TestRemoveTakesWhateverIsThere(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	if err := errors.Join(os.Mkdir(target, 0o700), os.WriteFile(filepath.Join(dir, "file"), nil, 0o600), os.Symlink(target, filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file", "link", "nothing", "target"} {
		if _, err := os.Lstat(target); err != nil {
			t.Errorf("before %s: %v", name, err)
		}
		if err := tree.Remove(t.Context(), filepath.Join(dir, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left %v, err %v", left, err)
	}
	if err := tree.Walk(t.Context(), target, tree.Options{}, func(*tree.File) error { return nil }); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("walk of nothing: %v", err)
	}
}
