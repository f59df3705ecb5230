package main

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// What is packed is unpacked again, under its new name.
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
	if err := pack(&archive, filepath.Join(from, "d"), "x"); err != nil {
		t.Fatal(err)
	}
	if err := unpack(&archive, "x", filepath.Join(to, "y")); err != nil {
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

// A container that is not trusted writes nowhere but where it was told to.
func TestCopyHostile(t *testing.T) {
	for _, test := range []struct {
		name    string
		headers []tar.Header
	}{
		{"beside", []tar.Header{{Name: "other", Typeflag: tar.TypeReg}}},
		{"above", []tar.Header{{Name: "x/../../evil", Typeflag: tar.TypeReg}}},
		{"absolute", []tar.Header{{Name: "/etc/evil", Typeflag: tar.TypeReg}}},
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
		if err := unpack(&archive, "x", filepath.Join(dir, "in", "x")); err == nil {
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
	if err := unpack(&archive, "x", filepath.Join(dir, "x")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(filepath.Join(dir, "x", "link")); err != nil || !info.IsDir() {
		t.Errorf("a link was made: %v", err)
	}
}
