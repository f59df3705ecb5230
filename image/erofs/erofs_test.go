package erofs

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/test/testenv"
	"golang.org/x/sys/unix"
)

// write writes a file system of the tree that build returns, and returns its path.
func write(t *testing.T, build func(w *Writer) *Node) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "fs"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := NewWriter(f)
	if err != nil {
		t.Fatal(err)
	}
	sum, err := w.Close(t.Context(), build(w), UUID{1})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Digest(t.Context(), f); err != nil || again != sum.Digest {
		t.Errorf("the digest is %s, then %s (err %v)", sum.Digest, again, err)
	}
	return f.Name()
}

// mount mounts the file system at path, and returns the path of its root.
func mount(t *testing.T, path string) string {
	t.Helper()
	testenv.Need(t, "erofs")
	if err := Probe(t.TempDir()); err != nil {
		t.Errorf("EROFS can be mounted from a file, but the probe says: %v", err)
	}
	fd, err := Mount(path, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fmt.Sprintf("/proc/self/fd/%d/", fd)
}

// The kernel reads what was written, at the sizes where the format has another case:
// directories of one block and of many, contents that end near the end of a block, targets
// and attributes that do not fit beside their inode, holes, and files with several names.
func TestKernelReadsIt(t *testing.T) {
	content := func(n int) []byte { return bytes.Repeat([]byte("0123456789abcdef-"), n/17+1)[:n] }
	sizes := []int{0, 1, BlockSize - 1, BlockSize, BlockSize + 1, 300_000}
	targets := []int{1, BlockSize - inodeSize, BlockSize - inodeSize + 1, 4095}
	attr := strings.Repeat("v", 60_000)
	names := map[string]bool{}
	for i := range 3000 {
		names[fmt.Sprint(strings.Repeat("n", i%200), i)] = true
	}
	for i := range 256 { // names are sorted as bytes, not characters
		if i != 0 && i != '/' && i != '.' {
			names[string([]byte{byte(i)})] = true
		}
	}
	root := mount(t, write(t, func(w *Writer) *Node {
		file := func(fill func(s *Stream)) *Node {
			s, err := w.Begin()
			if err != nil {
				t.Fatal(err)
			}
			fill(s)
			return &Node{Mode: unix.S_IFREG | 0o640, UID: 70_000, GID: 80_000, Sec: -5, Nsec: 7, Content: s.Content()}
		}
		top := &Node{Mode: unix.S_IFDIR | 0o1777, Entries: map[string]*Node{}}
		for _, n := range sizes {
			top.Entries[fmt.Sprint("file", n)] = file(func(s *Stream) {
				if _, err := s.Write(content(n)); err != nil {
					t.Fatal(err)
				}
			})
		}
		top.Entries["again"] = top.Entries["file1"]
		top.Entries["file1"].Attrs = map[string]string{"user.long": attr, "security.capability": "x", "trusted.a": ""}
		top.Entries["hole"] = file(func(s *Stream) {
			_, err := s.Write([]byte("head"))
			if err := errors.Join(err, s.Skip(64<<20)); err != nil {
				t.Fatal(err)
			}
		})
		for _, n := range targets {
			top.Entries[fmt.Sprint("link", n)] = &Node{Mode: unix.S_IFLNK | 0o777, Target: string(content(n))}
		}
		many := &Node{Mode: unix.S_IFDIR | 0o755, Entries: map[string]*Node{}}
		for name := range names {
			many.Entries[name] = &Node{Mode: unix.S_IFDIR | 0o700}
		}
		top.Entries["many"] = many
		top.Entries["device"] = &Node{Mode: unix.S_IFBLK | 0o600, Device: unix.Mkdev(259, 70_000)}
		return top
	}))
	for _, n := range sizes {
		if got, err := os.ReadFile(root + fmt.Sprint("file", n)); err != nil || !bytes.Equal(got, content(n)) {
			t.Errorf("file of %d bytes has %d (err %v)", n, len(got), err)
		}
	}
	for _, n := range targets {
		if got, err := os.Readlink(root + fmt.Sprint("link", n)); err != nil || got != string(content(n)) {
			t.Errorf("target of %d bytes has %d (err %v)", n, len(got), err)
		}
	}
	entries, err := os.ReadDir(root + "many")
	if err != nil || len(entries) != len(names) {
		t.Errorf("%d names of %d (err %v)", len(entries), len(names), err)
	}
	for name := range names {
		if _, err := os.Lstat(root + "many/" + name); err != nil {
			t.Errorf("name %q: %v", name, err)
		}
	}
	var one, two, many, hole, device unix.Stat_t
	for name, st := range map[string]*unix.Stat_t{"file1": &one, "again": &two, "many": &many, "hole": &hole, "device": &device} {
		if err := unix.Lstat(root+name, st); err != nil {
			t.Fatal(err)
		}
	}
	if one.Ino != two.Ino || one.Nlink != 2 || one.Uid != 70_000 || one.Gid != 80_000 || one.Mode != unix.S_IFREG|0o640 || one.Mtim.Sec != -5 || one.Mtim.Nsec != 7 {
		t.Errorf("file with two names is %+v and %+v", one, two)
	}
	if int(many.Nlink) != len(names)+2 || hole.Size != 64<<20+4 || device.Rdev != unix.Mkdev(259, 70_000) {
		t.Errorf("directory has %d links, hole %d bytes, device is %x", many.Nlink, hole.Size, device.Rdev)
	}
	value := make([]byte, 1<<16)
	if n, err := unix.Getxattr(root+"again", "user.long", value); err != nil || string(value[:n]) != attr {
		t.Errorf("attribute has %d bytes (err %v)", n, err)
	}
	list, err := unix.Listxattr(root+"file1", value)
	if keys := strings.Split(strings.Trim(string(value[:max(list, 0)]), "\x00"), "\x00"); err != nil || !slices.Contains(keys, "trusted.a") || len(keys) != 3 {
		t.Errorf("attributes are %q (err %v)", keys, err)
	}
}

// A tree that the format cannot hold is an error that blames the tree.
func TestAttributesAreBounded(t *testing.T) {
	large := map[string]string{}
	for i := range 5 {
		large[fmt.Sprint("user.", i)] = strings.Repeat("x", 60_000)
	}
	for name, attrs := range map[string]map[string]string{
		"one value": {"user.a": strings.Repeat("x", 1<<16)}, "all together": large,
		"name space": {"system.a": "x"}, "no name": {"user.": "x"}, "long name": {"user." + strings.Repeat("n", 300): "x"},
	} {
		if _, err := attrsSize(attrs); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s, %v: error is %v", name, slices.Collect(maps.Keys(attrs)), err)
		}
	}
}

// The digest differs for a file that was cut or changed.
func TestDigest(t *testing.T) {
	path := write(t, func(*Writer) *Node {
		return &Node{Mode: unix.S_IFDIR | 0o755, Entries: map[string]*Node{"f": {Mode: unix.S_IFREG}}}
	})
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := Digest(t.Context(), bytes.NewReader(whole))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 100, BlockSize, len(whole) - 1} {
		if _, err := Digest(t.Context(), bytes.NewReader(whole[:n])); !errors.Is(err, fault.Invalid) {
			t.Errorf("cut to %d bytes: error is %v", n, err)
		}
	}
	for _, at := range []int{superAt + 48, BlockSize + firstInode, len(whole) - 1} {
		bad := bytes.Clone(whole)
		bad[at] ^= 1
		if got, err := Digest(t.Context(), bytes.NewReader(bad)); err != nil || got == want {
			t.Errorf("byte %d was changed: %s (err %v)", at, got, err)
		}
	}
}
