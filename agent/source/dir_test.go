package source_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/internal/filelease"
	"github.com/crisp-cri/crisp/test/oddfiles"
	v1 "k8s.io/api/core/v1"
)

// watch starts a Dir in which the content of a file is the name of its object; "!" is a broken
// file, and "old" one that only an earlier release accepted.
func watch(t *testing.T, dir string, copies source.Copies) func(want string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	updates := make(chan source.Update)
	ended := make(chan struct{})
	d := &source.Dir{Path: dir, Copies: copies, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Decode: func(path string, data []byte, accepted bool) ([]manifest.Object, manifest.Errors, error) {
		text := strings.TrimSpace(string(data))
		if text == "!" || text == "old" && !accepted {
			return nil, nil, errors.New("broken")
		}
		if text == "" || strings.HasPrefix(text, "#") {
			return nil, nil, nil
		}
		pod := &v1.Pod{}
		pod.Name = text
		return []manifest.Object{pod}, nil, nil
	}}
	go func() {
		defer close(ended)
		d.WithoutRescan().Run(ctx, updates)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	// The returned function receives updates until one is as wanted.
	return func(want string) {
		t.Helper()
		last, patience := "none", time.After(time.Minute)
		for last != want {
			select {
			case u := <-updates:
				last = describe(u)
			case <-patience:
				t.Fatalf("last update %q, want %q", last, want)
			}
		}
	}
}

func describe(u source.Update) string {
	var words []string
	for _, f := range u.Files {
		word := filepath.Base(f.Path) + "="
		if f.Err != nil {
			word += f.Err.Error() + ":"
		}
		for _, p := range f.Objects {
			word += p.GetName()
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// The source sees files appear, change and disappear in all the ways in which people and programs
// write them.
func TestDir(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("a.yaml"), "a")
	expect := watch(t, dir, "")
	expect("a.yaml=a")

	write(t, at("b.json"), "b")
	expect("a.yaml=a b.json=b")

	// A configuration manager replaces a file by rename.
	write(t, at(".b.json.tmp"), "b2")
	if err := os.Rename(at(".b.json.tmp"), at("b.json")); err != nil {
		t.Fatal(err)
	}
	expect("a.yaml=a b.json=b2")

	// An editor moves the old file away and writes a new one.
	if err := os.Rename(at("a.yaml"), at("a.yaml~")); err != nil {
		t.Fatal(err)
	}
	write(t, at("a.yaml"), "a2")
	expect("a.yaml=a2 b.json=b2")

	// A broken file is reported along with the others.
	write(t, at("b.json"), "!")
	expect("a.yaml=a2 b.json=broken:b2")

	// Files that are not manifests are not read.
	for _, name := range []string{".a.yaml.swp", "#a.yaml#", "a.yaml.bak", "a.yaml-bak", "a.yaml.dpkg-old", "README", "4913"} {
		write(t, at(name), "!")
	}
	if err := os.Mkdir(at("d.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(at("b.json")); err != nil {
		t.Fatal(err)
	}
	expect("a.yaml=a2")
}

// Whatever has the name of a manifest, the others are read: it is reported, or as if it were not
// there.
func TestOddFile(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), "a")
	expect := watch(t, dir, "")
	expect("a.yaml=a")
	odd := filepath.Join(dir, "odd.yaml")
	oddfiles.Each(t, odd, func(kind string) {
		now := "a" + kind
		write(t, filepath.Join(dir, "a.yaml"), now)
		want := "a.yaml=" + now
		switch kind {
		case "pipe", "link to a directory":
			want += fmt.Sprintf(" odd.yaml=open %s: not a regular file:", odd)
		case "link to /dev/null":
			want += fmt.Sprintf(" odd.yaml=open %s: not a regular file: it is /dev/null:", odd)
		case "empty":
			want += " odd.yaml="
		case "garbage":
			want += " odd.yaml=\xff{[<\x00"
		case "huge":
			want += fmt.Sprintf(" odd.yaml=%s: 4398046511104 bytes, more than a manifest may have (4194304):", odd)
		}
		expect(want)
	})
}

// A missing directory ends no pods.
func TestDirAway(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "manifests")
	expect := watch(t, dir, "")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "a.yaml"), "a")
	expect("a.yaml=a")

	away := dir + ".away"
	if err := os.Rename(dir, away); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(away, "b.yaml"), "b")
	if err := os.Rename(away, dir); err != nil {
		t.Fatal(err)
	}
	expect("a.yaml=a b.yaml=b")
}

// Only a changed file is decoded again.
func TestDirDecodesOnce(t *testing.T) {
	dir := t.TempDir()
	var decoded []string
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	updates := make(chan source.Update)
	d := &source.Dir{Path: dir, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Decode: func(path string, data []byte, _ bool) ([]manifest.Object, manifest.Errors, error) {
		decoded = append(decoded, filepath.Base(path))
		return nil, nil, nil
	}}
	write(t, filepath.Join(dir, "a.yaml"), "a")
	write(t, filepath.Join(dir, "b.yaml"), "b")
	go d.Run(ctx, updates)
	<-updates
	write(t, filepath.Join(dir, "b.yaml"), "b2")
	<-updates
	if want := []string{"a.yaml", "b.yaml", "b.yaml"}; !slices.Equal(decoded, want) {
		t.Errorf("decoded %v, want %v", decoded, want)
	}
}

// A file that an earlier release accepted stays good under a release that would reject it. So does
// its last good version after a bad edit.
func TestDirOfEarlierRelease(t *testing.T) {
	dir, copies := t.TempDir(), source.Copies(filepath.Join(t.TempDir(), "copies"))
	path := filepath.Join(dir, "a.yaml")
	write(t, path, "old")
	watch(t, dir, copies)("a.yaml=broken:")
	write(t, path, "a")
	watch(t, dir, copies)("a.yaml=a")
	list, err := os.ReadDir(string(copies))
	if err != nil || len(list) != 1 {
		t.Fatalf("%d copies, %v", len(list), err)
	}
	write(t, filepath.Join(string(copies), list[0].Name()), "old")
	write(t, path, "old")
	watch(t, dir, copies)("a.yaml=old")
	write(t, path, "!")
	watch(t, dir, copies)("a.yaml=broken:old")
}

// A file that is broken when the agent starts has the objects of its last good version; a file that
// was removed has none.
func TestDirCopies(t *testing.T) {
	dir, copies := t.TempDir(), source.Copies(filepath.Join(t.TempDir(), "copies"))
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("a.yaml"), "a")
	write(t, at("b.yaml"), "b")
	watch(t, dir, copies)("a.yaml=a b.yaml=b")
	write(t, at("a.yaml"), "!")
	write(t, at("c.yaml"), "!")
	if err := os.Remove(at("b.yaml")); err != nil {
		t.Fatal(err)
	}
	watch(t, dir, copies)("a.yaml=broken:a c.yaml=broken:")
	if kept, err := os.ReadDir(string(copies)); err != nil || len(kept) != 1 {
		t.Errorf("%d copies are kept, %v", len(kept), err)
	} else if info, err := kept[0].Info(); err != nil || info.Mode() != 0o600 {
		t.Errorf("the copy's mode is %v", info.Mode())
	}
}

// A file that became empty is about to be written, or lost its content in a power cut. Its objects
// stay until the file is removed.
func TestEmptiedFileKeepsItsPods(t *testing.T) {
	dir, copies := t.TempDir(), source.Copies(filepath.Join(t.TempDir(), "copies"))
	path := filepath.Join(dir, "a.yaml")
	write(t, path, "a")
	expect := watch(t, dir, copies)
	expect("a.yaml=a")
	emptied := "a.yaml=" + path + ": defines nothing any more (remove the file to end what it defined):a"
	write(t, path, "")
	expect(emptied)
	watch(t, dir, copies)(emptied) // another agent reads the copy
	write(t, path, "# nothing\n")
	write(t, filepath.Join(dir, "b.yaml"), "")
	expect(emptied + " b.yaml=")
	write(t, path, "a2")
	expect("a.yaml=a2 b.yaml=")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	expect("b.yaml=")
}

// A file is not read while a program is writing to it.
func TestHalfWrittenFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	write(t, path, "a")
	expect := watch(t, dir, "")
	expect("a.yaml=a")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, known := filelease.HasWriter(reader(t, path)); !known {
		t.Skip("the file system of temporary files has no leases (fcntl(2), F_SETLEASE)")
	}
	if _, err := f.WriteString("half"); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "b.yaml"), "b")
	expect("a.yaml=a b.yaml=b")
	if _, err := f.WriteString(" and whole"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	expect("a.yaml=half and whole b.yaml=b")
}

func reader(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// A directory that never existed counts as empty, so that its pods end. One that had manifests does
// not.
func TestNoDirectory(t *testing.T) {
	dir, copies := filepath.Join(t.TempDir(), "manifests"), source.Copies(filepath.Join(t.TempDir(), "copies"))
	watch(t, dir, copies)("")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "a.yaml"), "a")
	watch(t, dir, copies)("a.yaml=a")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		updates := make(chan source.Update)
		d := &source.Dir{Path: dir, Copies: copies, Log: slog.New(slog.DiscardHandler)}
		go d.Run(ctx, updates)
		select {
		case u := <-updates:
			t.Errorf("a directory that is away reports %q", describe(u))
		case <-ctx.Done():
		}
	})
}
