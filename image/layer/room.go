package layer

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	"github.com/crisp-cri/crisp/internal/fault"
)

// Bounds for the memory in which layers are unpacked, in bytes. Names and attributes can have 4 KB
// and more, which compress to almost nothing, and any number of layers are unpacked at once.
const (
	maxNames = 512 << 20 // of one layer, and of all together beyond their own; some 3 million directories
	ownRoom  = 4 << 20   // that each layer has whatever the others take
	roomStep = 1 << 20   // that a layer takes at once of what they share
	nameCost = 80        // of a name, besides its bytes
)

var (
	errManyFiles = errors.New("files of the layer take too much memory") // more than its most
	errNoRoom    = errors.New("other layers take the memory")
)

// A budget is the memory that the layers being unpacked share.
//
// A layer that finds none left becomes a directory, which takes less. If that finds none either, it
// waits until it is the only one of its kind, and then has maxNames for itself. It never waits
// while it is: so the others, which keep what they have, wait for one that ends.
type budget struct {
	left atomic.Int64
	last chan struct{} // holds a token while a layer has maxNames for itself
}

func newBudget(bytes int64) *budget {
	b := &budget{last: make(chan struct{}, 1)}
	b.left.Store(bytes)
	return b
}

// memory is the budget of the process.
var memory = newBudget(maxNames)

// A room is what one layer may take of a budget.
type room struct {
	of    *budget
	most  int
	used  int
	size  int   // how much may be used without asking
	taken int64 // of the budget
	alone bool
}

func (b *budget) room(most int) *room { return &room{of: b, most: most, size: min(ownRoom, most)} }

// take accounts for n more bytes. The error is errManyFiles if they are more than the layer's most,
// and errNoRoom if there are no more for now.
func (r *room) take(n int) error {
	for r.used += n; r.used > r.size; r.size += roomStep {
		if r.size >= r.most {
			return fault.Invalid.Errorf("%w: more than %d bytes", errManyFiles, r.most)
		}
		if r.of.left.Add(-roomStep) < 0 {
			r.of.left.Add(roomStep)
			r.used -= n
			return errNoRoom
		}
		r.taken += roomStep
	}
	return nil
}

// wait is take for a layer that has no other form left: it waits for its turn.
func (r *room) wait(ctx context.Context, n int) error {
	err := r.take(n)
	if err != errNoRoom {
		return err
	}
	select {
	case r.of.last <- struct{}{}:
		r.alone, r.size = true, r.most
		return r.take(n)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leave gives everything back.
func (r *room) leave() {
	r.of.left.Add(r.taken)
	if r.alone {
		<-r.of.last
	}
	r.taken, r.alone = 0, false
}

// maxSparse bounds the claimed sizes of the sparse files of an image: each has to be read through,
// holes included.
const maxSparse = 1 << 40

// A growth is roughly the space that a layer occupies while it is being unpacked: files replaced
// by later entries count until the whole layer is measured.
type growth struct {
	bytes, inodes atomic.Uint64

	sparse  int64         // claimed by the layer's sparse files
	claimed *atomic.Int64 // by those of the whole image; nil: the layer is alone
}

// claim accounts for a sparse file.
func (g *growth) claim(size int64) error {
	if g.claimed == nil {
		g.claimed = new(atomic.Int64)
	}
	if size > maxSparse || g.claimed.Add(size) > maxSparse {
		return fault.Invalid.Errorf("sparse files of the image hold more than %d bytes", int64(maxSparse))
	}
	g.sparse += size
	return nil
}

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
	if g.claimed != nil {
		g.claimed.Add(-g.sparse)
	}
	g.sparse = 0
}

func (g *growth) usage() Usage { return Usage{g.bytes.Load(), g.inodes.Load()} }

// growing counts the bytes written to a file.
type growing struct {
	w io.Writer
	g *growth
}

func (g growing) Write(p []byte) (int, error) {
	n, err := g.w.Write(p)
	g.g.wrote(n)
	return n, err
}
