package powercut

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/test/filetrace"
)

const (
	fileType = unix.S_IFMT
	dirType  = unix.S_IFDIR
)

// An object is a file or a directory, from its creation on. Inode numbers are reused;
// those of objects are not.
type object struct {
	file    filetrace.File // as it was made
	content []byte
	names   map[string]int // of a directory: what was in it before

	changes []int // of content, or of what inode(7) says: operations
	entries []int // of a directory: operations on names in it
	syncs   []int
}

// A disk is the initial state and everything that was done to it.
type disk struct {
	ops     []filetrace.Op
	objects []*object
	root    int
	of      []int // by operation: the object
	dir, to []int // the directories, or -1
}

// before is the initial state of a directory.
type before struct {
	objects []*object
	byIno   map[uint64]int
}

func snapshot(dir string) (*before, error) {
	b := &before{byIno: map[uint64]int{}}
	_, err := b.add(dir)
	return b, err
}

func (b *before) add(path string) (int, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	if n, ok := b.byIno[st.Ino]; ok {
		return n, nil
	}
	o := &object{file: filetrace.File{
		Ino: st.Ino, Mode: st.Mode, UID: st.Uid, GID: st.Gid, Rdev: st.Rdev, Mtime: st.Mtim.Nano(), Attrs: filetrace.Attrs(path),
	}}
	n := len(b.objects)
	b.objects = append(b.objects, o)
	b.byIno[st.Ino] = n
	var err error
	switch st.Mode & fileType {
	case unix.S_IFREG:
		o.content, err = os.ReadFile(path)
	case unix.S_IFLNK:
		o.file.Target, err = os.Readlink(path)
	case dirType:
		o.names = map[string]int{}
		var list []fs.DirEntry
		list, err = os.ReadDir(path)
		for _, e := range list {
			if o.names[e.Name()], err = b.add(filepath.Join(path, e.Name())); err != nil {
				return 0, err
			}
		}
	}
	return n, err
}

// newDisk assigns operations to objects.
func newDisk(b *before, ops []filetrace.Op) (*disk, error) {
	d := &disk{ops: ops, objects: b.objects, of: make([]int, len(ops)), dir: make([]int, len(ops)), to: make([]int, len(ops))}
	byIno := maps.Clone(b.byIno)
	find := func(ino uint64) int {
		if n, ok := byIno[ino]; ok && ino != 0 {
			return n
		}
		return -1
	}
	for i, op := range ops {
		switch op.Kind {
		case filetrace.Create, filetrace.Mkdir, filetrace.Mknod, filetrace.Symlink, filetrace.Tmpfile:
			byIno[op.File.Ino] = len(d.objects)
			o := &object{file: op.File}
			if op.Kind == filetrace.Mkdir {
				o.names = map[string]int{}
			}
			d.objects = append(d.objects, o)
		}
		d.of[i], d.dir[i], d.to[i] = find(op.File.Ino), find(op.Dir), find(op.ToDir)
		switch op.Kind {
		case filetrace.Marked:
			continue
		case filetrace.Syncfs:
			for _, o := range d.objects {
				o.syncs = append(o.syncs, i)
			}
			continue
		}
		if d.of[i] < 0 || op.Dir != 0 && d.dir[i] < 0 || op.ToDir != 0 && d.to[i] < 0 {
			return nil, fmt.Errorf("%s %s is of a file that was not made", op.Kind, op.Path)
		}
		switch o := d.objects[d.of[i]]; op.Kind {
		case filetrace.Write, filetrace.Meta:
			o.changes = append(o.changes, i)
		case filetrace.Fsync:
			o.syncs = append(o.syncs, i)
		}
		for _, dir := range slices.Compact([]int{d.dir[i], d.to[i]}) {
			if dir >= 0 {
				d.objects[dir].entries = append(d.objects[dir].entries, i)
			}
		}
	}
	return d, nil
}

// How much of an object is on disk beyond what was synced.
type variant int

const (
	lost     variant = iota // nothing
	kept                    // all
	half                    // all but the second half of the last write
	zeroes                  // the size of all, and zeroes
	metaLost                // the content, but not mode, owner and attributes
)

// A state is how much of each object is on disk: for a directory, how many of the
// operations on its names since the start; for any other, a variant.
type state struct {
	without int // a sync that did not happen; -1: none
	entries map[int]int
	files   map[int]variant
}

// synced returns the last sync of o among the first n operations, -1 without one.
func (s state) synced(o *object, n int) int {
	last := -1
	for _, i := range o.syncs {
		if i < n && i != s.without {
			last = i
		}
	}
	return last
}

func countBelow(list []int, n int) int {
	i, _ := slices.BinarySearch(list, n)
	return i
}

// node is a file in a state.
type node struct {
	path    string
	object  int
	file    filetrace.File
	content []byte
}

// tree returns what a power cut leaves after n operations in state s: everything that can
// be reached, in the order of paths.
func (d *disk) tree(s state, n int) []node {
	names := map[int]map[string]int{}
	of := func(dir int) map[string]int {
		if names[dir] == nil {
			names[dir] = maps.Clone(d.objects[dir].names)
			if names[dir] == nil {
				names[dir] = map[string]int{}
			}
		}
		return names[dir]
	}
	there := func(dir, i int) bool {
		return countBelow(d.objects[dir].entries, i) < s.entries[dir]
	}
	for i, op := range d.ops[:n] {
		from, to := d.dir[i], d.to[i]
		if from < 0 && to < 0 || from >= 0 && !there(from, i) || from < 0 && !there(to, i) {
			continue
		}
		base, toBase := filepath.Base(op.Path), filepath.Base(op.To)
		switch op.Kind {
		case filetrace.Create, filetrace.Mkdir, filetrace.Mknod, filetrace.Symlink:
			of(from)[base] = d.of[i]
		case filetrace.Remove:
			delete(of(from), base)
		case filetrace.Link:
			of(to)[toBase] = d.of[i]
		case filetrace.Rename:
			delete(of(from), base)
			of(to)[toBase] = d.of[i]
		case filetrace.Swap:
			of(from)[base], of(to)[toBase] = of(to)[toBase], of(from)[base]
		}
	}
	var all []node
	var walk func(path string, object int)
	walk = func(path string, object int) {
		file, content := d.inode(s, object, n)
		all = append(all, node{path, object, file, content})
		if file.Mode&fileType == dirType {
			in := of(object)
			for _, name := range slices.Sorted(maps.Keys(in)) {
				walk(filepath.Join(path, name), in[name])
			}
		}
	}
	walk(".", d.root)
	return all
}

// inode returns the content of an object in state s, and what inode(7) describes.
func (d *disk) inode(s state, object, n int) (filetrace.File, []byte) {
	o := d.objects[object]
	file, content := o.file, o.content
	synced := s.synced(o, n)
	v, chosen := s.files[object]
	if !chosen && file.Mode&fileType == dirType && s.entries[object] == countBelow(o.entries, n) {
		v = kept
	}
	changes := o.changes[:countBelow(o.changes, n)]
	lastWrite := -1
	for _, i := range changes {
		if d.ops[i].Kind == filetrace.Write {
			lastWrite = i
		}
	}
	for _, i := range changes {
		op := d.ops[i]
		if i > synced && v == lost {
			break
		}
		if op.Kind == filetrace.Meta {
			if i < synced || v != metaLost {
				file = op.File
			}
			continue
		}
		data, size := op.Data, op.Size
		if i > synced {
			switch {
			case v == zeroes:
				data = make([]byte, len(data))
			case v == half && i == lastWrite:
				data = data[:len(data)/2]
				size = max(int64(len(content)), op.Off+int64(len(data)))
				size = min(size, max(op.Size, op.Off+int64(len(data))))
			}
		}
		grown := make([]byte, size)
		copy(grown, content)
		if op.Off < size {
			copy(grown[op.Off:], data)
		}
		content = grown
		if v != metaLost || i < synced {
			file.Mtime = op.File.Mtime
		}
	}
	return file, content
}

// hash distinguishes disks.
func hash(all []node, safe int) [32]byte {
	h := sha256.New()
	first := map[int]int{} // object → its first node, to tell links from copies
	for i, n := range all {
		if _, ok := first[n.object]; !ok {
			first[n.object] = i
		}
		fmt.Fprintf(h, "%q %o %d %d %d %d %d %q %d\n", n.path, n.file.Mode, n.file.UID, n.file.GID, n.file.Rdev, n.file.Mtime, first[n.object], n.file.Target, len(n.content))
		for _, name := range slices.Sorted(maps.Keys(n.file.Attrs)) {
			fmt.Fprintf(h, "%q=%q\n", name, n.file.Attrs[name])
		}
		h.Write(n.content)
	}
	fmt.Fprint(h, safe)
	return [32]byte(h.Sum(nil))
}

// write makes a disk in the empty directory dir.
func write(dir string, all []node) error {
	first := map[int]string{}
	for _, n := range all {
		path := filepath.Join(dir, n.path)
		if old, ok := first[n.object]; ok && n.file.Mode&fileType != dirType {
			if err := os.Link(old, path); err != nil {
				return err
			}
			continue
		}
		first[n.object] = path
		if err := makeFile(path, n); err != nil {
			return fmt.Errorf("make %s: %w", n.path, err)
		}
	}
	for _, n := range slices.Backward(all) { // what is in it would change a directory's time
		ts := []unix.Timespec{unix.NsecToTimespec(n.file.Mtime), unix.NsecToTimespec(n.file.Mtime)}
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(dir, n.path), ts, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	return nil
}

func makeFile(path string, n node) error {
	var err error
	switch n.file.Mode & fileType {
	case unix.S_IFREG:
		err = os.WriteFile(path, n.content, 0o600)
	case dirType:
		if n.path != "." {
			err = os.Mkdir(path, 0o700)
		}
	case unix.S_IFLNK:
		err = os.Symlink(n.file.Target, path)
	default:
		err = unix.Mknod(path, n.file.Mode, int(n.file.Rdev))
	}
	if err != nil {
		return err
	}
	if int(n.file.UID) != os.Geteuid() || int(n.file.GID) != os.Getegid() {
		err = unix.Lchown(path, int(n.file.UID), int(n.file.GID))
	}
	for name, value := range n.file.Attrs {
		if strings.HasPrefix(name, "security.selinux") {
			continue
		}
		err = errors.Join(err, unix.Lsetxattr(path, name, []byte(value), 0))
	}
	if n.file.Mode&fileType != unix.S_IFLNK {
		err = errors.Join(err, unix.Chmod(path, n.file.Mode&0o7777))
	}
	return err
}
