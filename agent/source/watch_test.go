package source_test

import (
	"os"
	"path/filepath"
	"testing"
)

// link makes a link, or replaces one by a rename.
func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

// waitWatched returns once inotify reports changes in the directory. A change of a link before that
// could be found by the first scan instead.
func waitWatched(t *testing.T, dir string, expect func(string), want string) {
	t.Helper()
	write(t, filepath.Join(dir, "z.yaml"), "z")
	expect(want + " z.yaml=z")
	if err := os.Remove(filepath.Join(dir, "z.yaml")); err != nil {
		t.Fatal(err)
	}
	expect(want)
}

// inotify also works for manifests that are links: a replaced link, or a write to its target, is
// seen without the rescan. The same holds for links to directories, as in a ConfigMap's volume,
// whose link ..data is replaced, and for links whose targets are created later.
func TestLinkedManifests(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	mkdir(t, at("..1"))
	write(t, at("..1/a.yaml"), "a1")
	link(t, "..1", at("..data"))
	link(t, "..data/a.yaml", at("a.yaml"))
	link(t, filepath.Join(other, "later/b.yaml"), at("b.yaml"))
	expect := watch(t, dir, "")
	expect("a.yaml=a1")
	waitWatched(t, dir, expect, "a.yaml=a1")

	mkdir(t, at("..2"))
	write(t, at("..2/a.yaml"), "a2")
	link(t, "..2", at("..data"))
	expect("a.yaml=a2")
	write(t, at("..2/a.yaml"), "a3")
	expect("a.yaml=a3")

	mkdir(t, filepath.Join(other, "later"))
	waitWatched(t, dir, expect, "a.yaml=a3") // the new directory is seen before its file exists
	write(t, filepath.Join(other, "later/b.yaml"), "b")
	expect("a.yaml=a3 b.yaml=b")
}

// The directory itself may be a link that is replaced, as by a deployment of whole directories.
func TestLinkedDirectory(t *testing.T) {
	top := t.TempDir()
	at := func(name string) string { return filepath.Join(top, name) }
	for _, n := range []string{"1", "2"} {
		mkdir(t, at(n))
		write(t, at(n+"/a.yaml"), "a"+n)
	}
	link(t, "1", at("current"))
	link(t, at("current"), at("manifests"))
	expect := watch(t, at("manifests"), "")
	expect("a.yaml=a1")
	waitWatched(t, at("1"), expect, "a.yaml=a1")
	link(t, "2", at("current"))
	expect("a.yaml=a2")
	write(t, at("2/a.yaml"), "a3")
	expect("a.yaml=a3")
	link(t, "1", at("manifests"))
	expect("a.yaml=a1")
}
