package atomicfile_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/test/testdisk"
	"github.com/crisp-cri/crisp/test/testenv"
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

// What is changed in place can be read as JSON, keeps its mode, and is never created.
func TestOverwrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status.json")
	if err := atomicfile.Overwrite(path, []byte(`{}`)); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a missing file: %v", err)
	}
	if err := atomicfile.WriteJSON(path, map[string]string{"state": "running"}); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{`{"state":"a"}`, `{"state":"` + strings.Repeat("x", 100) + `"}`, `{}`} {
		if err := atomicfile.Overwrite(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		var got, want map[string]string
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatal(err)
		}
		if err := atomicfile.ReadJSON(path, &got); err != nil || !maps.Equal(got, want) {
			t.Errorf("%s is read as %v, %v", text, got, err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// mounted returns a directory with a file system of its own.
func mounted(t *testing.T, what, options string) string {
	t.Helper()
	testenv.NeedRoot(t, "it mounts")
	dir := t.TempDir()
	if err := unix.Mount(what, dir, what, 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// What fits into the file needs nothing of the disk: no room can be reserved on a ramfs, as for
// data in the inodes of a full ext4.
func TestOverwriteReservesOnlyMore(t *testing.T) {
	path := filepath.Join(mounted(t, "ramfs", ""), "status.json")
	if err := atomicfile.WriteJSON(path, "running"); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{`"stopped"`, `"ended"`} {
		if err := atomicfile.Overwrite(path, []byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := atomicfile.Overwrite(path, []byte(`"longer than before"`)); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("longer: %v", err)
	}
	var got string
	if err := atomicfile.ReadJSON(path, &got); err != nil || got != "ended" {
		t.Errorf("%q, %v", got, err)
	}
}

// On a full disk a status can still change, and what does not fit leaves the old one.
func TestWriteJSONOnAFullDisk(t *testing.T) {
	dir := mounted(t, "tmpfs", "size=64k,nr_inodes=0")
	path := filepath.Join(dir, "status.json")
	if err := atomicfile.WriteJSON(path, "running"); err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(dir, "long.json")
	if err := atomicfile.WriteJSON(long, strings.Repeat("x", 5000)); err != nil {
		t.Fatal(err)
	}
	if err := testdisk.Fill(dir); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := errors.Join(atomicfile.WriteJSON(path, "exited"), atomicfile.ReadJSON(path, &got)); err != nil || got != "exited" {
		t.Errorf("%q, %v", got, err)
	}
	if err := atomicfile.WriteJSON(path, strings.Repeat("x", 10000)); !atomicfile.IsFull(err) {
		t.Errorf("more than there is room for: %v", err)
	}
	if err := atomicfile.ReadJSON(path, &got); err != nil || got != "exited" {
		t.Errorf("now it is %q, %v", got, err)
	}
	// More than a page could be found half changed.
	for _, text := range []string{"short", strings.Repeat("y", 5000)} {
		if err := atomicfile.WriteJSON(long, text); !atomicfile.IsFull(err) {
			t.Errorf("%.5s…: %v", text, err)
		}
	}
	if err := atomicfile.ReadJSON(long, &got); err != nil || got != strings.Repeat("x", 5000) {
		t.Errorf("now it is %.5s…, %v", got, err)
	}
	if err := atomicfile.WriteJSON(filepath.Join(dir, "new.json"), "x"); !atomicfile.IsFull(err) {
		t.Errorf("a new file: %v", err)
	}
}
