package erofs

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
)

// A recipe makes a tree from any bytes; a layer can have that tree.
type recipe struct {
	data []byte
	w    *Writer
	want map[string]*readInode // what a reader must find, by path

	dirs  []string // paths of directories, the root first
	nodes map[string]*Node
	files []string // paths of files that may get another name
}

// next returns the next number of the recipe, below n.
func (r *recipe) next(n int) int {
	v := 0
	for m := 1; m < n; m <<= 8 {
		v <<= 8
		if len(r.data) > 0 {
			v |= int(r.data[0])
			r.data = r.data[1:]
		}
	}
	return v % n
}

// text returns n bytes that depend on the recipe, none of them 0 or a slash.
func (r *recipe) text(n int) string {
	seed := r.next(250)
	b := make([]byte, n)
	for i := range b {
		if b[i] = byte(1 + (seed+i*7)%255); b[i] == '/' {
			b[i] = 'x'
		}
	}
	return string(b)
}

// size returns a size up to most, often one at which the format has another case.
func (r *recipe) size(most int) int {
	edges := []int{0, 1, BlockSize - inodeSize, BlockSize - inodeSize + 1, BlockSize - 1, BlockSize, BlockSize + 1, 3 * BlockSize}
	if i := r.next(2 * len(edges)); i < len(edges) {
		return min(edges[i], most)
	}
	return r.next(most + 1)
}

// node returns an inode of the kind and what a reader must find, both without content.
func (r *recipe) node(kind uint32) (*Node, *readInode) {
	n := &Node{
		Mode: kind | uint32(r.next(0o10000)), UID: uint32(r.next(1 << 32)), GID: uint32(r.next(1 << 16)),
		Sec: int64(r.next(1<<33)) - 1<<31, Nsec: uint32(r.next(1_000_000_000)),
	}
	for range r.next(4) {
		if n.Attrs == nil {
			n.Attrs = map[string]string{}
		}
		space := attrSpaces[r.next(len(attrSpaces))].prefix
		n.Attrs[space+r.text(1+r.next(unix.NAME_MAX-len(space)))] = r.text(r.size(20_000))
	}
	return n, &readInode{Mode: n.Mode, UID: n.UID, GID: n.GID, Sec: n.Sec, Nsec: n.Nsec, Attrs: n.Attrs}
}

func (r *recipe) add(t *testing.T) {
	parent := r.dirs[r.next(len(r.dirs))]
	base := r.text(1 + r.next(unix.NAME_MAX))
	name := path.Join(parent, base)
	if base == "." || base == ".." || r.want[name] != nil {
		return
	}
	var n *Node
	var want *readInode
	switch r.next(6) {
	case 0, 1:
		n, want = r.node(unix.S_IFDIR)
		n.Entries = map[string]*Node{}
		r.dirs = append(r.dirs, name)
	case 2:
		n, want = r.node(unix.S_IFREG)
		s, err := r.w.Begin()
		if err != nil {
			t.Fatal(err)
		}
		for range 1 + r.next(3) {
			if r.next(4) == 0 {
				hole := r.size(3 * BlockSize)
				if err := s.Skip(int64(hole)); err != nil {
					t.Fatal(err)
				}
				want.Data += strings.Repeat("\x00", hole)
				continue
			}
			part := r.text(r.size(20_000))
			if _, err := s.Write([]byte(part)); err != nil {
				t.Fatal(err)
			}
			want.Data += part
		}
		n.Content = s.Content()
	case 3:
		n, want = r.node(unix.S_IFLNK)
		n.Target = r.text(1 + r.size(unix.PathMax-2))
		want.Data = n.Target
	case 4:
		n, want = r.node([]uint32{unix.S_IFCHR, unix.S_IFBLK, unix.S_IFIFO, unix.S_IFSOCK}[r.next(4)])
		if kind := n.Mode & unix.S_IFMT; kind == unix.S_IFCHR || kind == unix.S_IFBLK {
			major, minor := uint32(r.next(1<<12)), uint32(r.next(1<<20))
			n.Device, want.Rdev = unix.Mkdev(major, minor), major<<20|minor
		}
	case 5:
		if len(r.files) == 0 {
			return
		}
		old := r.files[r.next(len(r.files))]
		n, want = r.nodes[old], r.want[old]
	}
	if !n.IsDir() {
		r.files = append(r.files, name)
	}
	r.nodes[parent].Entries[base] = n
	r.nodes[name], r.want[name] = n, want
}

// FuzzWriter writes a tree made from the input and reads it with another implementation:
// the trees are equal, and no two things overlap in the file.
func FuzzWriter(f *testing.F) {
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{2, 9, 200, 0, 5}, 100))
	for i := range 8 {
		seed := make([]byte, 600)
		for j := range seed {
			seed[j] = byte(j*j*(i+3) + i*j)
		}
		f.Add(seed)
	}
	for length := 150; length < 165; length++ { // a directory of several blocks, each as full as it can be
		var seed []byte
		for i := range 250 {
			fifo := make([]byte, 22)
			fifo[0], fifo[1], fifo[2], fifo[3] = byte(length), byte(i), 4, 2
			seed = append(seed, fifo...)
		}
		f.Add(append(make([]byte, 18), seed...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := os.CreateTemp(t.TempDir(), "fs")
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		w, err := NewWriter(file)
		if err != nil {
			t.Fatal(err)
		}
		r := &recipe{data: data, w: w, want: map[string]*readInode{}, dirs: []string{"/"}, nodes: map[string]*Node{}}
		root, want := r.node(unix.S_IFDIR)
		root.Entries = map[string]*Node{}
		r.nodes["/"], r.want["/"] = root, want
		for n := 0; len(r.data) > 0 && n < 300; n++ {
			r.add(t)
		}
		sum, err := w.Close(t.Context(), root, UUID{1})
		if err != nil {
			t.Fatal(err)
		}
		made, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		got, err := read(made)
		if err != nil {
			t.Fatal(err)
		}
		for name, n := range got {
			if n.Mode&unix.S_IFMT == unix.S_IFDIR {
				n.Data = "" // the other paths have its entries
			}
			if want := r.want[name]; want != nil {
				want.Links = n.Links // counted by read
			}
		}
		if diff := cmp.Diff(r.want, got, cmpopts.IgnoreUnexported(readInode{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("the tree that was read differs (-want +got):\n%.2000s", diff)
		}
		r.sameLinks(t, got)
		digest, err := Digest(t.Context(), file)
		if err != nil || digest != sum.Digest {
			t.Errorf("the digest is %s, then %s (err %v)", sum.Digest, digest, err)
		}
	})
}

// sameLinks fails if names share inodes that did not, or no longer share those that did.
func (r *recipe) sameLinks(t *testing.T, got map[string]*readInode) {
	t.Helper()
	links := func(of func(name string) any) string {
		groups := map[any][]string{}
		for name := range r.want {
			groups[of(name)] = append(groups[of(name)], name)
		}
		var all []string
		for _, names := range groups {
			slices.Sort(names)
			all = append(all, fmt.Sprintf("%q", names))
		}
		slices.Sort(all)
		return strings.Join(all, "\n")
	}
	want := links(func(name string) any { return r.nodes[name] })
	if diff := cmp.Diff(want, links(func(name string) any { return got[name] })); diff != "" {
		t.Errorf("names are not of the same inodes (-want +got):\n%.2000s", diff)
	}
}
