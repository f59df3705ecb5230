package layer

import (
	"io"
	"sync/atomic"
)

// A growth is roughly the space that a layer occupies while it is being unpacked: files replaced
// by later entries count until the whole layer is measured.
type growth struct{ bytes, inodes atomic.Uint64 }

// block is the block size of most disks, to which the size of a file is rounded up.
const block = 4096

// wrote counts bytes of a file.
func (g *growth) wrote(n int) { g.bytes.Add(uint64(n)) }

// ended counts the unused rest of a file's last block.
func (g *growth) ended(size int64) { g.bytes.Add(uint64(-size & (block - 1))) }

// made counts an inode.
func (g *growth) made() { g.inodes.Add(1) }

// restart resets the counts: the files are gone.
func (g *growth) restart() {
	g.bytes.Store(0)
	g.inodes.Store(0)
}

func (g *growth) usage() Usage { return Usage{g.bytes.Load(), g.inodes.Load()} }

// growing counts the bytes written to a file.
type growing struct {
	w io.Writer
	g *growth
}

// Write implements io.Writer.
func (g growing) Write(p []byte) (int, error) {
	n, err := g.w.Write(p)
	g.g.wrote(n)
	return n, err
}
