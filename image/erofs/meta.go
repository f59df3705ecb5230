package erofs

import (
	"context"
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"github.com/crisp-cri/crisp/internal/fault"
	"golang.org/x/sys/unix"
)

// Sizes and values of the format (fs/erofs/erofs_fs.h of Linux).
const (
	superAt   = 1024
	superSize = 128
	magic     = 0xe0f5e1e2

	hasMtime = 0x2 // compatible feature: inodes have a modification time

	inodeSize  = 64
	nidUnit    = 32
	extended   = 1      // bit of an inode's format: it has 64 bytes
	flatPlain  = 0 << 1 // all content is in its own blocks
	flatInline = 2 << 1 // the content follows the inode, in the same block
)

// firstInode is the position of the root's inode in the metadata. Inode numbers do not begin at
// 0: readers of directories skip such entries.
const firstInode = inodeSize

var order = binary.LittleEndian

// A meta writes the metadata of a tree: it places all inodes, whose numbers the directories
// need, then writes them, and behind them the data that does not fit beside them.
type meta struct {
	ctx   context.Context
	w     *Writer
	base  int64 // the first block
	next  int64 // where the next inode can be, in bytes from there
	nodes []*Node
	apart []*Node // of nodes, those whose directory or target is in its own blocks
	sum   Summary
}

func (m *meta) tree(root *Node) error {
	if err := m.place(root, root); err != nil {
		return err
	}
	block := m.base + (m.next+BlockSize-1)>>blockBits
	for _, n := range m.apart {
		n.Content.block = uint32(block)
		block += (n.Content.Size + BlockSize - 1) >> blockBits
	}
	if block > math.MaxUint32 {
		return errTooLarge
	}
	for _, n := range m.nodes {
		if err := m.inode(n); err != nil {
			return err
		}
	}
	for _, n := range m.apart {
		if err := m.w.align(); err != nil {
			return err
		}
		if err := m.write(n.data()); err != nil {
			return err
		}
	}
	return m.w.align()
}

// place assigns positions to n, which is in the directory parent, and everything below it.
func (m *meta) place(n, parent *Node) error {
	if n.names++; n.names > 1 {
		return nil
	}
	if err := m.ctx.Err(); err != nil {
		return err
	}
	attrs, err := attrsSize(n.Attrs)
	if err != nil {
		return err
	}
	n.parent = parent
	beside := 0
	if n.IsDir() || n.Target != "" {
		n.Content.Size = n.dataSize()
		if size := inodeSize + attrs + int(n.Content.Size); size <= BlockSize {
			n.inline, beside = true, int(n.Content.Size)
		} else {
			m.apart = append(m.apart, n)
		}
	}
	// The inode itself, and inline data, must not cross the end of a block.
	if fit := inodeSize + beside; n.inline && int(m.next&(BlockSize-1))+fit+attrs > BlockSize || int(m.next&(BlockSize-1))+inodeSize > BlockSize {
		m.next = (m.next + BlockSize - 1) &^ (BlockSize - 1)
	}
	n.nid = uint64(m.next / nidUnit)
	m.next = (m.next + int64(inodeSize+attrs+beside) + nidUnit - 1) &^ (nidUnit - 1)
	m.nodes = append(m.nodes, n)
	n.ino = uint32(len(m.nodes))
	m.sum.Inodes++
	if n.Mode&unix.S_IFMT == unix.S_IFREG {
		m.sum.Bytes += uint64(n.Content.Size)
	}
	for _, name := range slices.Sorted(maps.Keys(n.Entries)) {
		child := n.Entries[name]
		if err := m.place(child, n); err != nil {
			return err
		}
		if child.IsDir() {
			n.names++
		}
	}
	return nil
}

// inode writes n at its place.
func (m *meta) inode(n *Node) error {
	if err := m.ctx.Err(); err != nil {
		return err
	}
	if err := m.w.zeroes(m.base<<blockBits + int64(n.nid)*nidUnit - m.w.at); err != nil {
		return err
	}
	format, names, content := uint16(extended|flatPlain), n.names, n.Content.block
	if n.inline {
		format |= flatInline
	}
	if n.IsDir() {
		names++ // its own "."
	}
	if kind := n.Mode & unix.S_IFMT; kind == unix.S_IFCHR || kind == unix.S_IFBLK {
		content = deviceNumber(n.Device)
	}
	attrs := encodeAttrs(n.Attrs)
	b := make([]byte, 0, inodeSize+len(attrs))
	b = order.AppendUint16(b, format)
	b = order.AppendUint16(b, attrsCount(len(attrs)))
	b = order.AppendUint16(b, uint16(n.Mode))
	b = order.AppendUint16(b, 0)
	b = order.AppendUint64(b, uint64(n.Content.Size))
	b = order.AppendUint32(b, content)
	b = order.AppendUint32(b, n.ino)
	b = order.AppendUint32(b, n.UID)
	b = order.AppendUint32(b, n.GID)
	b = order.AppendUint64(b, uint64(n.Sec))
	b = order.AppendUint32(b, n.Nsec)
	b = order.AppendUint32(b, names)
	b = append(b, make([]byte, inodeSize-len(b))...)
	b = append(b, attrs...)
	if n.inline {
		b = append(b, n.data()...)
	}
	return m.write(b)
}

func (m *meta) write(b []byte) error {
	n, err := m.w.buf.Write(b)
	m.w.at += int64(n)
	return err
}

// deviceNumber encodes a device like the kernel's new_encode_dev.
func deviceNumber(dev uint64) uint32 {
	major, minor := unix.Major(dev), unix.Minor(dev)
	return minor&0xff | major<<8 | minor&^0xff<<12
}

// dataSize is the length of data.
func (n *Node) dataSize() int64 {
	if !n.IsDir() {
		return int64(len(n.Target))
	}
	var size int64
	n.blocks(func(names []string, used int) {
		size = (size + BlockSize - 1) &^ (BlockSize - 1)
		size += int64(used)
	})
	return size
}

// data returns what reading a directory or symlink returns.
func (n *Node) data() []byte {
	if !n.IsDir() {
		return []byte(n.Target)
	}
	data := make([]byte, 0, n.Content.Size)
	n.blocks(func(names []string, used int) {
		data = append(data, make([]byte, -len(data)&(BlockSize-1))...)
		at := len(names) * direntSize
		for _, name := range names {
			to := n.entry(name)
			data = order.AppendUint64(data, to.nid)
			data = order.AppendUint16(data, uint16(at))
			data = append(data, to.fileType(), 0)
			at += len(name)
		}
		for _, name := range names {
			data = append(data, name...)
		}
	})
	return data
}

// direntSize is the size of an entry of a directory without its name.
const direntSize = 12

// blocks calls f for each block of a directory, with its names in order and the number of bytes
// they use.
func (n *Node) blocks(f func(names []string, used int)) {
	names := slices.AppendSeq([]string{".", ".."}, maps.Keys(n.Entries))
	slices.Sort(names)
	from, used := 0, 0
	for i, name := range names {
		if used+direntSize+len(name) > BlockSize {
			f(names[from:i], used)
			from, used = i, 0
		}
		used += direntSize + len(name)
	}
	f(names[from:], used)
}

// entry returns the node to which a name in the directory n refers.
func (n *Node) entry(name string) *Node {
	switch name {
	case ".":
		return n
	case "..":
		return n.parent
	}
	return n.Entries[name]
}

// superblock returns the superblock without its checksum.
func (m *meta) superblock(root *Node, id UUID) ([]byte, error) {
	blocks := m.w.at >> blockBits
	if blocks > math.MaxUint32 {
		return nil, errTooLarge
	}
	b := make([]byte, superSize)
	order.PutUint32(b[0:], magic)
	order.PutUint32(b[8:], hasMtime)
	b[12] = blockBits
	order.PutUint16(b[14:], uint16(root.nid))
	order.PutUint64(b[16:], m.sum.Inodes)
	order.PutUint32(b[36:], uint32(blocks))
	order.PutUint32(b[40:], uint32(m.base))
	copy(b[48:], id[:])
	return b, nil
}

// Extended attributes, after the inode: a header, then for each its name and value.
const (
	attrsHeader = 12
	attrHeader  = 4
	maxAttrs    = math.MaxUint16 * 4 // bytes of all; the format counts units of four
)

// attrSpaces are the numbers of the attribute namespaces.
var attrSpaces = []struct {
	prefix string
	number byte
}{{"user.", 1}, {"trusted.", 4}, {"security.", 6}}

func splitAttr(key string) (space byte, name string, err error) {
	for _, s := range attrSpaces {
		if len(key) > len(s.prefix) && key[:len(s.prefix)] == s.prefix && len(key) <= unix.NAME_MAX {
			return s.number, key[len(s.prefix):], nil
		}
	}
	return 0, "", fault.Invalid.Errorf("attribute %.300q cannot be stored", key)
}

// attrsSize is the space that attributes take.
func attrsSize(attrs map[string]string) (int, error) {
	if len(attrs) == 0 {
		return 0, nil
	}
	size := attrsHeader
	for key, value := range attrs {
		_, name, err := splitAttr(key)
		if err != nil {
			return 0, err
		}
		if size += (attrHeader + len(name) + len(value) + 3) &^ 3; len(value) > math.MaxUint16 || size > maxAttrs {
			return 0, fault.Invalid.Errorf("attribute %s and those beside it are too large", key)
		}
	}
	return size, nil
}

// attrsCount returns an inode's field for the size of its attributes.
func attrsCount(size int) uint16 {
	if size == 0 {
		return 0
	}
	return uint16((size-attrsHeader)/4 + 1)
}

func encodeAttrs(attrs map[string]string) []byte {
	if len(attrs) == 0 {
		return nil
	}
	b := make([]byte, attrsHeader)
	for _, key := range slices.Sorted(maps.Keys(attrs)) {
		space, name, _ := splitAttr(key) // attrsSize has checked it
		b = append(b, byte(len(name)), space)
		b = order.AppendUint16(b, uint16(len(attrs[key])))
		b = append(b, name...)
		b = append(b, attrs[key]...)
		b = append(b, make([]byte, -len(b)&3)...)
	}
	return b
}
