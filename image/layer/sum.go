package layer

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"os"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/tree"
)

// Usage is the space that a directory tree occupies: bytes allocated on disk, and inodes.
type Usage struct{ Bytes, Inodes uint64 }

// A sum is the summary of a directory tree from its metadata alone.
type sum struct {
	Bytes  uint64 // in files; a file with several names counts once
	Disk   uint64 // allocated
	Inodes uint64
	Digest string `json:",omitempty"` // of the metadata, see describe; hex
}

// maxLinked bounds the inodes with several names that a walk remembers. Beyond that, a name
// counts as its share of the inode.
const maxLinked = 1 << 18

// A count adds up a tree.
type count struct {
	sum    sum
	digest hash.Hash         // nil: none is wanted
	linked map[uint64]uint64 // inodes with several names → how many are still expected
	shares float64           // of inodes past maxLinked
	record []byte
	target [unix.PathMax]byte
}

// measure walks the tree at dir, which must not change, and digests its metadata. It reads no
// file.
//
// A walk of a fresh layer finds everything in memory, at a few µs per file.
func measure(ctx context.Context, dir string) (sum, error) {
	c := &count{digest: sha256.New(), linked: make(map[uint64]uint64)}
	o := tree.Options{Sorted: true, Leave: func(*tree.File) error {
		c.digest.Write([]byte{0}) // the end of the directory: no record begins like this
		return nil
	}}
	if err := tree.Walk(ctx, dir, o, c.visit); err != nil {
		return sum{}, err
	}
	c.sum.Digest = hex.EncodeToString(c.digest.Sum(nil))
	return c.sum, nil
}

// Occupied returns the usage of the tree at dir, which a container may be changing: files that
// vanish meanwhile are left out.
func Occupied(ctx context.Context, dir string) (Usage, error) {
	c := &count{linked: make(map[uint64]uint64)}
	err := tree.Walk(ctx, dir, tree.Options{}, c.visit)
	c.sum.Inodes += uint64(c.shares)
	return Usage{c.sum.Disk, c.sum.Inodes}, err
}

func (c *count) visit(f *tree.File) error {
	name := f.Name
	if f.IsTop() {
		name = "" // the top, wherever it is
	}
	if c.digest != nil {
		n := 0
		if f.Stat.Mode&unix.S_IFMT == unix.S_IFLNK {
			var err error
			if n, err = unix.Readlinkat(f.Dir, f.Name, c.target[:]); err != nil {
				return os.NewSyscallError("readlinkat", err)
			}
		}
		c.describe(name, &f.Stat, c.target[:n])
	}
	c.add(&f.Stat)
	return nil
}

// describe adds to the digest the metadata that a power cut would damage and use does not
// change: name, mode, owner, device, and, for anything but a directory, size, link count, time
// and target.
func (c *count) describe(name string, st *unix.Stat_t, target []byte) {
	r := binary.AppendUvarint(c.record[:0], uint64(len(name)+1))
	r = append(r, name...)
	r = binary.LittleEndian.AppendUint32(r, st.Mode)
	r = binary.LittleEndian.AppendUint32(r, st.Uid)
	r = binary.LittleEndian.AppendUint32(r, st.Gid)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		r = binary.LittleEndian.AppendUint64(r, uint64(st.Rdev))
		r = binary.LittleEndian.AppendUint64(r, uint64(st.Size))
		r = binary.LittleEndian.AppendUint64(r, uint64(st.Nlink))
		r = binary.LittleEndian.AppendUint64(r, uint64(st.Mtim.Nano()))
		r = append(r, target...)
	}
	c.digest.Write(r)
	c.record = r
}

// add counts one name.
func (c *count) add(st *unix.Stat_t) {
	names := uint64(1)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
		left, seen := c.linked[st.Ino]
		switch {
		case seen && left == 1:
			delete(c.linked, st.Ino)
			return
		case seen:
			c.linked[st.Ino] = left - 1
			return
		case len(c.linked) < maxLinked:
			c.linked[st.Ino] = uint64(st.Nlink) - 1
		default:
			names = uint64(st.Nlink)
		}
	}
	if names == 1 {
		c.sum.Inodes++
	} else {
		c.shares += 1 / float64(names)
	}
	c.sum.Disk += uint64(st.Blocks) * 512 / names
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		c.sum.Bytes += uint64(st.Size) / names
	}
}
