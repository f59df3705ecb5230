// Package erofs writes EROFS file systems (Documentation/filesystems/erofs.rst of Linux), each
// as one file and in one pass: it writes the content of files as it arrives, and all metadata
// when the tree is complete. Only the superblock, in the first block, is written last.
//
//	block 0              superblock, at byte 1024
//	blocks 1 … m-1       content of files, each from the beginning of a block
//	blocks m … end       inodes with their attributes, directories, targets of links
//
// The file systems are uncompressed, in blocks of 4 KiB, with 64-byte inodes; they need no
// kernel later than 5.4. Inodes are located by their distance from block m, so m may be
// anywhere.
//
// A Node is a file, in memory: some 200 bytes, and its name. The caller bounds their number, and
// adheres to the limits of Linux file systems: names of 1 to 255 bytes without a slash.
package erofs

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

// BlockSize is the size of a block in bytes.
const BlockSize = 1 << blockBits

const blockBits = 12

// A Node is an inode. Nodes form a tree by Entries; one that is not a directory can occur in it
// more than once, under several names.
type Node struct {
	Mode     uint32 // type, permissions and special bits as in st_mode
	UID, GID uint32
	Sec      int64 // time of the last modification
	Nsec     uint32
	Device   uint64            // of a device, as st_rdev
	Target   string            // of a symlink: 1 to 4095 bytes
	Attrs    map[string]string // extended attributes of the name spaces user, trusted and security
	Entries  map[string]*Node  // of a directory
	Content  Content           // of a regular file

	parent *Node
	names  uint32 // in the tree; of a directory, with those of its subdirectories
	nid    uint64 // its position, in units of 32 bytes from the first block of metadata
	ino    uint32
	inline bool // its data follows it directly
}

// Content is the location of a file's content.
type Content struct {
	Size  int64
	block uint32
}

// IsDir reports whether n is a directory.
func (n *Node) IsDir() bool { return n.Mode&unix.S_IFMT == unix.S_IFDIR }

// fileType is the type of n in directories.
func (n *Node) fileType() byte {
	switch n.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return 1
	case unix.S_IFDIR:
		return 2
	case unix.S_IFCHR:
		return 3
	case unix.S_IFBLK:
		return 4
	case unix.S_IFIFO:
		return 5
	case unix.S_IFSOCK:
		return 6
	case unix.S_IFLNK:
		return 7
	}
	return 0
}

// A Summary describes a written file system.
type Summary struct {
	Bytes  uint64 // in regular files; one with several names counts once
	Inodes uint64
	Digest string // SHA-256 of superblock and metadata, in hex; see Digest
}

// errTooLarge is the error for a file system that exceeds the format's limits.
var errTooLarge = &fs.PathError{Op: "write", Path: "EROFS file system", Err: unix.EFBIG}
