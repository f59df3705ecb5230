package erofs

import (
	"bufio"
	"context"
	"io"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// flushSize is how many bytes are written between two hints to the kernel to start writeback,
// which leaves less for the sync(2) at the end.
const flushSize = 8 << 20

// directSize is the size in bytes from which content is written without a copy: a call for each
// costs less than that.
const directSize = 64 << 10

// A Writer writes one file system. It is not safe for concurrent use.
type Writer struct {
	file  *os.File
	buf   *bufio.Writer
	at    int64 // bytes written so far, including those in buf
	begun int64 // bytes whose writeback was started
}

// NewWriter returns a Writer to f, which is empty and also open for reading.
func NewWriter(f *os.File) (*Writer, error) {
	w := &Writer{file: f, buf: bufio.NewWriterSize(f, 256<<10)}
	return w, w.zeroes(BlockSize)
}

// Begin begins the content of a file.
func (w *Writer) Begin() (*Stream, error) {
	if err := w.align(); err != nil {
		return nil, err
	}
	if w.at>>blockBits > math.MaxUint32 {
		return nil, errTooLarge
	}
	return &Stream{w: w, from: w.at}, nil
}

// A Stream takes the content of a file, until the next call of another method of the Writer.
type Stream struct {
	w    *Writer
	from int64
}

func (s *Stream) Write(p []byte) (n int, err error) {
	if len(p) < directSize {
		n, err = s.w.buf.Write(p)
	} else if err = s.w.buf.Flush(); err == nil {
		n, err = s.w.file.Write(p)
	}
	s.w.at += int64(n)
	if s.w.at-s.w.begun >= flushSize {
		_ = unix.SyncFileRange(int(s.w.file.Fd()), s.w.begun, s.w.at-s.w.begun, unix.SYNC_FILE_RANGE_WRITE) // a hint
		s.w.begun = s.w.at
	}
	return n, err
}

// Skip writes n bytes of zeroes as a hole, which takes no space.
func (s *Stream) Skip(n int64) error {
	if err := s.w.buf.Flush(); err != nil {
		return err
	}
	s.w.at += n
	_, err := s.w.file.Seek(s.w.at, io.SeekStart)
	return err
}

// Content returns the location of what was written.
func (s *Stream) Content() Content {
	return Content{Size: s.w.at - s.from, block: uint32(s.from >> blockBits)}
}

// align fills the last block.
func (w *Writer) align() error { return w.zeroes(-w.at & (BlockSize - 1)) }

var zero [BlockSize]byte

func (w *Writer) zeroes(n int64) error {
	for n > 0 {
		m, err := w.buf.Write(zero[:min(n, BlockSize)])
		w.at, n = w.at+int64(m), n-int64(m)
		if err != nil {
			return err
		}
	}
	return nil
}

// A UUID identifies a file system. If several have the same one, overlayfs does not recognize a
// file of a lower layer once it is copied up, and its inode number changes.
type UUID [16]byte

// Close writes the tree below root, a directory, and the superblock, unless ctx ends before. The
// caller closes the file.
func (w *Writer) Close(ctx context.Context, root *Node, id UUID) (Summary, error) {
	if err := w.align(); err != nil {
		return Summary{}, err
	}
	m := &meta{ctx: ctx, w: w, base: w.at >> blockBits, next: firstInode}
	if err := m.tree(root); err != nil {
		return Summary{}, err
	}
	if err := w.buf.Flush(); err != nil {
		return Summary{}, err
	}
	super, err := m.superblock(root, id)
	if err != nil {
		return Summary{}, err
	}
	if _, err := w.file.WriteAt(super, superAt); err != nil {
		return Summary{}, err
	}
	m.sum.Digest, err = Digest(ctx, w.file)
	return m.sum, err
}
