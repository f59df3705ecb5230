package atomicfile_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/crisp-cri/crisp/internal/atomicfile"
)

// A failed write leaves the old content and no temporary file.
func TestFailedWriteLeavesTheOldFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "record")
	if err := atomicfile.Write(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	// A directory in the way makes the rename fail after the data is written.
	blocked := filepath.Join(dir, "blocked")
	if err := os.MkdirAll(filepath.Join(blocked, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Write(blocked, []byte("new"), 0o600); err == nil {
		t.Fatal("replaced a directory")
	}
	if got, _ := os.ReadFile(path); string(got) != "old" {
		t.Errorf("content is %q", got)
	}
	names, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(names) != 0 {
		t.Errorf("left %v (err %v)", names, err)
	}
}

func TestWriteReplacesContentAndMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	for _, write := range []func(string, []byte, os.FileMode) error{atomicfile.Write, atomicfile.WriteVolatile} {
		if err := os.WriteFile(path, []byte("a longer old content"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := write(path, []byte("new"), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != "new" {
			t.Errorf("content is %q (err %v)", got, err)
		}
		if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("mode is %v (err %v)", fi.Mode(), err)
		}
	}
}
