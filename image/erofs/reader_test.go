package erofs

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// A reader reads a file system as Documentation/filesystems/erofs.rst and
// fs/erofs/erofs_fs.h of Linux describe it, and shares no code with the Writer, so that
// tests need no kernel. What the kernel would refuse or misread is an error, and so is a
// byte that belongs to two things.
type reader struct {
	data   []byte
	meta   uint64 // where the metadata begins, in bytes
	taken  []extent
	inodes map[uint64]*readInode
	tree   map[string]*readInode // by path, "/" is the root
}

// An extent is a range of bytes and what it holds.
type extent struct {
	at, end uint64
	what    string
}

// A readInode is an inode with its content and attributes.
type readInode struct {
	Mode, UID, GID, Links, Rdev, Nsec uint32
	Sec                               int64
	Data                              string // content or target
	Attrs                             map[string]string
	nid                               uint64
	names                             uint32 // number of names that it was found under
	entries                           []readEntry
}

type readEntry struct {
	name string
	nid  uint64
	kind byte
}

func read(data []byte) (_ map[string]*readInode, err error) {
	r := &reader{data: data, inodes: map[uint64]*readInode{}, tree: map[string]*readInode{}}
	defer func() { // an index out of the file
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	super := data[1024:]
	le := binary.LittleEndian
	switch {
	case le.Uint32(super) != 0xE0F5E1E2:
		return nil, errors.New("magic")
	case super[12] != 12:
		return nil, fmt.Errorf("blocks have %d bits", super[12])
	case le.Uint32(super[80:]) != 0:
		return nil, errors.New("features that a reader must know")
	case uint64(le.Uint32(super[36:]))*4096 != uint64(len(data)):
		return nil, fmt.Errorf("%d blocks in a file of %d bytes", le.Uint32(super[36:]), len(data))
	}
	r.take(0, 4096, "superblock")
	r.meta = uint64(le.Uint32(super[40:])) * 4096
	root := uint64(le.Uint16(super[14:]))
	if err := r.walk("/", root, root); err != nil {
		return nil, err
	}
	if n := le.Uint64(super[16:]); n != uint64(len(r.inodes)) {
		return nil, fmt.Errorf("%d inodes, the superblock says %d", len(r.inodes), n)
	}
	for _, n := range r.inodes {
		if n.Links != n.names {
			return nil, fmt.Errorf("inode %d has %d links and %d names", n.nid, n.Links, n.names)
		}
	}
	return r.tree, r.overlap()
}

// take records that the n bytes from at on belong to what.
func (r *reader) take(at, n uint64, what string) {
	if at+n > uint64(len(r.data)) {
		panic(fmt.Sprintf("%s is at %d, %d bytes", what, at, n))
	}
	r.taken = append(r.taken, extent{at, at + n, what})
}

// overlap returns an error if a byte belongs to two things.
func (r *reader) overlap() error {
	slices.SortFunc(r.taken, func(a, b extent) int { return cmp.Compare(a.at, b.at) })
	for i := 1; i < len(r.taken); i++ {
		if a, b := r.taken[i-1], r.taken[i]; b.at < a.end {
			return fmt.Errorf("byte %d is of %s and of %s", b.at, a.what, b.what)
		}
	}
	return nil
}

// walk reads the inode nid, whose directory is parent, and all below it.
func (r *reader) walk(name string, nid, parent uint64) error {
	n := r.inodes[nid]
	fresh := n == nil
	if fresh {
		var err error
		if n, err = r.inode(nid); err != nil {
			return fmt.Errorf("%.100q: %w", name, err)
		}
		r.inodes[nid] = n
	}
	r.tree[name] = n
	if n.Mode&0o170000 != 0o040000 {
		n.names++
		return nil
	}
	if !fresh {
		return fmt.Errorf("directory %.100q has several names", name)
	}
	n.names += 2
	for i, e := range n.entries {
		if i > 0 && n.entries[i-1].name >= e.name {
			return fmt.Errorf("%.100q: names %q and %q are not in order", name, n.entries[i-1].name, e.name)
		}
		if e.nid == 0 {
			return fmt.Errorf("%.100q: entry %q has inode 0", name, e.name)
		}
		switch {
		case e.name == ".." && e.nid == parent, e.name == "." && e.nid == nid:
			if e.kind != 2 {
				return fmt.Errorf("%.100q: %s is of type %d", name, e.name, e.kind)
			}
			continue
		case e.name == ".", e.name == "..", e.name == "", strings.ContainsAny(e.name, "/\x00"):
			return fmt.Errorf("%.100q: entry %q is of inode %d", name, e.name, e.nid)
		}
		if err := r.walk(path.Join(name, e.name), e.nid, nid); err != nil {
			return err
		}
		child := r.inodes[e.nid]
		kinds := map[uint32]byte{0o100000: 1, 0o040000: 2, 0o020000: 3, 0o060000: 4, 0o010000: 5, 0o140000: 6, 0o120000: 7}
		if want := kinds[child.Mode&0o170000]; e.kind != want {
			return fmt.Errorf("%.100q: entry %q is of type %d, its inode of %d", name, e.name, e.kind, want)
		}
		if e.kind == 2 {
			n.names++
		}
	}
	if !slices.ContainsFunc(n.entries, func(e readEntry) bool { return e.name == "." }) ||
		!slices.ContainsFunc(n.entries, func(e readEntry) bool { return e.name == ".." }) {
		return fmt.Errorf("%.100q has no . or ..", name)
	}
	return nil
}

func (r *reader) inode(nid uint64) (*readInode, error) {
	le := binary.LittleEndian
	at := r.meta + nid*32
	b := r.data[at:]
	format := le.Uint16(b)
	if format&1 != 1 || format>>1 != 0 && format>>1 != 2 {
		return nil, fmt.Errorf("format %#x", format)
	}
	n := &readInode{
		Mode: uint32(le.Uint16(b[4:])), UID: le.Uint32(b[24:]), GID: le.Uint32(b[28:]),
		Sec: int64(le.Uint64(b[32:])), Nsec: le.Uint32(b[40:]), Links: le.Uint32(b[44:]), nid: nid,
	}
	var attrs uint64
	if count := uint64(le.Uint16(b[2:])); count > 0 {
		attrs = 12 + 4*(count-1)
	}
	if at%4096+64 > 4096 {
		return nil, errors.New("the inode lies across the end of a block")
	}
	size, block := le.Uint64(b[8:]), uint64(le.Uint32(b[16:]))
	r.take(at, 64+attrs, fmt.Sprintf("inode %d", nid))
	if err := n.readAttrs(b[64 : 64+attrs]); err != nil {
		return nil, err
	}
	switch kind := n.Mode & 0o170000; {
	case kind == 0o020000 || kind == 0o060000:
		major, minor := block&0xfff00>>8, block&0xff|block>>12&0xfff00
		n.Rdev = uint32(major<<20 | minor)
		return n, nil
	case kind == 0o010000 || kind == 0o140000:
		return n, nil
	}
	tail := uint64(0) // bytes behind the inode
	if format>>1 == 2 {
		tail = size % 4096
		end := at + 64 + attrs
		if tail > 0 && (end%4096 == 0 || end%4096+tail > 4096) {
			return nil, errors.New("what is inline lies across the end of a block")
		}
		r.take(end, tail, fmt.Sprintf("inline of inode %d", nid))
	}
	plain := size - tail
	if plain > 0 {
		r.take(block*4096, (plain+4095)&^4095, fmt.Sprintf("blocks of inode %d", nid))
	}
	n.Data = string(r.data[block*4096*min(plain, 1):][:plain]) + string(b[64+attrs:][:tail])
	if n.Mode&0o170000 == 0o040000 {
		return n, n.readEntries()
	}
	return n, nil
}

func (n *readInode) readEntries() error {
	for block := range slices.Chunk([]byte(n.Data), 4096) {
		first := binary.LittleEndian.Uint16(block[8:])
		if first == 0 || first%12 != 0 {
			return fmt.Errorf("the first name is at %d", first)
		}
		count := int(first / 12)
		for i := range count {
			e := block[i*12:]
			from, to := int(binary.LittleEndian.Uint16(e[8:])), len(block)
			if i+1 < count {
				to = int(binary.LittleEndian.Uint16(e[20:]))
			}
			name := block[from:to]
			if i+1 == count {
				name, _, _ = bytes.Cut(name, []byte{0})
			}
			n.entries = append(n.entries, readEntry{string(name), binary.LittleEndian.Uint64(e), e[10]})
		}
	}
	return nil
}

func (n *readInode) readAttrs(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if b[4] != 0 {
		return errors.New("shared attributes")
	}
	n.Attrs = map[string]string{}
	for b = b[12:]; len(b) > 0; {
		prefix, ok := map[byte]string{1: "user.", 4: "trusted.", 6: "security."}[b[1]]
		if !ok {
			return fmt.Errorf("attribute of name space %d", b[1])
		}
		name, size := int(b[0]), int(binary.LittleEndian.Uint16(b[2:]))
		key := prefix + string(b[4:4+name])
		if _, twice := n.Attrs[key]; twice {
			return fmt.Errorf("attribute %q is there twice", key)
		}
		n.Attrs[key] = string(b[4+name : 4+name+size])
		b = b[(4+name+size+3)&^3:]
	}
	return nil
}
