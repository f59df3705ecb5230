package atomicfile_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

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
	for _, write := range []func(string, []byte, os.FileMode) error{atomicfile.Write, atomicfile.WriteVolatile, atomicfile.WriteExpendable} {
		if err := write(blocked, []byte("new"), 0o600); err == nil {
			t.Fatal("replaced a directory")
		}
		if _, err := os.Stat(filepath.Join(blocked, "x")); err != nil {
			t.Errorf("the directory has changed: %v", err)
		}
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
	for _, write := range []func(string, []byte, os.FileMode) error{atomicfile.Write, atomicfile.WriteVolatile, atomicfile.WriteExpendable} {
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

// An expendable file is not written out when it replaces another: its removal would wait for the disk.
// On ext4 it has no place there yet.
func TestReplacedFileIsNotWrittenOut(t *testing.T) {
	testenv.NeedRoot(t, "it mounts")
	testenv.Need(t, "program:mkfs.ext4")
	dir := t.TempDir()
	disk, at := filepath.Join(dir, "disk"), filepath.Join(dir, "at")
	for _, step := range [][]string{
		{"truncate", "-s", "16M", disk}, {"mkfs.ext4", "-q", disk}, {"mkdir", at}, {"mount", "-o", "loop", disk, at},
	} {
		if out, err := exec.Command(step[0], step[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", step, err, out)
		}
	}
	defer func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	path := filepath.Join(at, "record.json")
	for n := range 3 {
		if err := atomicfile.WriteExpendable(path, fmt.Appendf(nil, "version %d", n), 0o600); err != nil {
			t.Fatal(err)
		}
		if !delayed(t, path) {
			t.Errorf("version %d is being written out", n)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "version 2" {
		t.Errorf("%q, %v", got, err)
	}
	if left, err := filepath.Glob(filepath.Join(at, ".*")); err != nil || len(left) != 0 {
		t.Errorf("%q is left, %v", left, err)
	}
}

// delayed reports whether the first extent of a file has no place on the disk yet.
func delayed(t *testing.T, path string) bool {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	arg := struct { // linux/fiemap.h
		start, length                         uint64
		flags, mapped, count, reserved        uint32
		logical, physical, size, rest0, rest1 uint64
		extent, rest2, rest3, rest4           uint32
	}{length: 1 << 20, count: 1}
	const fiemap, unknown = 0xc020660b, 0x2
	if _, _, err := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fiemap, uintptr(unsafe.Pointer(&arg))); err != 0 {
		t.Fatal(err)
	}
	return arg.mapped == 1 && arg.extent&unknown != 0
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
