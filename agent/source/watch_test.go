package source_test

import (
	"os"
	"path/filepath"
	"testing"
)

// link makes a link or, by a rename, exchanges one.
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

// waitWatched returns when a change of what is in the directory is noticed without a rescan.
// Before that, a change of links could be taken for one that the first scan finds.
func waitWatched(t *testing.T, dir string, expect func(string), want string) {
	t.Helper()
	write(t, filepath.Join(dir, "z.yaml"), "z")
	expect(want + " z.yaml=z")
	if err := os.Remove(filepath.Join(dir, "z.yaml")); err != nil {
		t.Fatal(err)
	}
	expect(want)
}

// Manifests that are links are as good as files: whoever exchanges a link, or writes to what it
// leads to, need not wait for the next rescan. So it is with links to directories, as of a
// ConfigMap's volume, whose link ..data is exchanged, and with links whose targets come later.
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
	waitWatched(t, dir, expect, "a.yaml=a3") // the directory is noticed before its file is there
	write(t, filepath.Join(other, "later/b.yaml"), "b")
	expect("a.yaml=a3 b.yaml=b")
}

// The directory itself may be a link that is exchanged, as by a deployment of whole directories.
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
