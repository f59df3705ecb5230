package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Packed files are unpacked under their new name.
func TestCopy(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{"d/a": "A", "d/sub/b": "B"} {
		path = filepath.Join(from, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	var archive bytes.Buffer
	if err := pack(&archive, filepath.Join(from, "d"), "x", nothing(t)); err != nil {
		t.Fatal(err)
	}
	if err := unpack(&archive, "x", filepath.Join(to, "y"), nothing(t)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"y/a": "A", "y/sub/b": "B"} {
		got, err := os.ReadFile(filepath.Join(to, path))
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	if info, err := os.Stat(filepath.Join(to, "y/a")); err != nil || info.Mode() != 0o640 {
		t.Errorf("its mode is not kept: %v", err)
	}
}

// A file is copied into an existing directory, and does not replace it.
func TestCopyInto(t *testing.T) {
	for _, test := range []struct{ to, dir, base string }{
		{"/tmp", "/tmp", "a.conf"}, {"/tmp/", "/tmp", "a.conf"}, {"/new/", "/new", "a.conf"}, {"/tmp/b.conf", "/tmp", "b.conf"}, {".", ".", "a.conf"},
	} {
		dir, base := destination("/etc/a.conf", test.to, func(path string) bool { return path == "/tmp" || path == "." })
		if dir != test.dir || base != test.base {
			t.Errorf("to %s: %s in %s, want %s in %s", test.to, base, dir, test.base, test.dir)
		}
	}
}

// A file that cannot be read fails the copy, even if the receiver accepts the rest.
func TestCopyOfWhatCannotBeRead(t *testing.T) {
	broken, dead := errors.New("cannot be read"), errors.New("tar is not there")
	drain := func(r io.Reader) error {
		_, _ = io.Copy(io.Discard, r)
		return nil
	}
	write := func(err error) func(io.Writer) error {
		return func(w io.Writer) error {
			_, writeErr := w.Write([]byte("some of it"))
			return cmp.Or(writeErr, err)
		}
	}
	for _, test := range []struct {
		name string
		from func(io.Writer) error
		to   func(io.Reader) error
		want error
	}{
		{"all is well", write(nil), drain, nil},
		{"a part is missing", write(broken), drain, broken},
		{"the reader gives up", write(nil), func(io.Reader) error { return dead }, dead},
		{"the reader minds too", write(broken), func(r io.Reader) error { return cmp.Or(drain(r), dead) }, broken},
	} {
		if err := feed(test.from, test.to); err != test.want {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
}

// An untrusted container cannot write outside the destination.
func TestCopyHostile(t *testing.T) {
	for _, test := range []struct {
		name    string
		headers []tar.Header
	}{
		{"beside", []tar.Header{{Name: "other", Typeflag: tar.TypeReg}}},
		{"above", []tar.Header{{Name: "x/../../evil", Typeflag: tar.TypeReg}}},
		{"absolute", []tar.Header{{Name: "/etc/evil", Typeflag: tar.TypeReg}}},
		{"deeper than paths reach", []tar.Header{{Name: "x" + strings.Repeat("/d", 2500), Typeflag: tar.TypeDir, Mode: 0o755}}},
		{"nothing", nil},
	} {
		dir := t.TempDir()
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		for _, h := range test.headers {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		w.Close()
		if err := unpack(&archive, "x", filepath.Join(dir, "in", "x"), ignore); err == nil {
			t.Errorf("%s: no error", test.name)
		}
	}
	dir := t.TempDir()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, h := range []tar.Header{{Name: "x", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "x/link", Typeflag: tar.TypeSymlink, Linkname: "/"}, {Name: "x/link/evil", Typeflag: tar.TypeReg, Mode: 0o644}} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	if err := unpack(&archive, "x", filepath.Join(dir, "x"), ignore); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(filepath.Join(dir, "x", "link")); err != nil || !info.IsDir() {
		t.Errorf("a link was made: %v", err)
	}
}

// nothing returns a function that fails the test if anything is left out.
func nothing(t *testing.T) func(name, what string) {
	return func(name, what string) { t.Errorf("%s, a %s, is left out", name, what) }
}

func ignore(string, string) {}

// An incomplete copy is reported: files that are neither regular nor directories are named.
func TestCopyTellsWhatItLeavesOut(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	if err := os.Symlink("/etc/passwd", filepath.Join(from, "link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(from, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	var reported []string
	leftOut := func(name, what string) { reported = append(reported, filepath.Base(name)+" "+what) }
	var archive bytes.Buffer
	if err := pack(&archive, from, "x", leftOut); err != nil {
		t.Fatal(err)
	}
	archive.Reset()
	w := tar.NewWriter(&archive)
	for _, h := range []tar.Header{
		{Name: "x", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "x/null", Typeflag: tar.TypeChar},
		{Name: "x/hard", Typeflag: tar.TypeLink, Linkname: "x/a"},
		{Name: "x/soft", Typeflag: tar.TypeSymlink, Linkname: "/etc"},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	if err := unpack(&archive, "x", filepath.Join(to, "y"), leftOut); err != nil {
		t.Fatal(err)
	}
	want := []string{"link symbolic link", "pipe named pipe", "null device", "hard hard link", "soft symbolic link"}
	if !slices.Equal(reported, want) {
		t.Errorf("reported %q, want %q", reported, want)
	}
}
