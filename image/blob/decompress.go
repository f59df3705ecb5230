package blob

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"io"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/gunzip"
	"github.com/klauspost/compress/zstd"
)

// maxWindow bounds the memory that a zstd stream can demand: the limit of the zstd command with
// --long.
const maxWindow = 128 << 20

// A noted reader remembers the error that ended it, to distinguish it from errors that a reader
// above derived from it.
type noted struct {
	r   io.Reader
	err error
}

func (n *noted) Read(p []byte) (int, error) {
	m, err := n.r.Read(p)
	if err != nil {
		n.err = err
	}
	return m, err
}

// Decompress undoes the compression of r, which it detects from the first bytes: media types of
// real images can be wrong. Close the result before using r otherwise.
func Decompress(r io.Reader) (io.ReadCloser, error) {
	from := &noted{r: r}
	b := bufio.NewReaderSize(from, 64<<10)
	magic, err := b.Peek(6)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gunzip.NewReader(b)
		if err != nil {
			return nil, fault.Invalid.Errorf("decompress: %w", err)
		}
		return &derived{z, from, cannotDecompress}, nil
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}), isSkippable(magic):
		z, err := zstd.NewReader(b, zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, fault.Invalid.Errorf("decompress: %w", err)
		}
		return &derived{z.IOReadCloser(), from, cannotDecompress}, nil
	case bytes.HasPrefix(magic, []byte("BZh")), bytes.HasPrefix(magic, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		return nil, fault.Invalid.Errorf("compression by bzip2 or xz is not supported")
	}
	return io.NopCloser(b), nil
}

// isSkippable reports whether magic begins a zstd skippable frame (RFC 8878, 3.1.2), with which
// a zstd stream may begin.
func isSkippable(magic []byte) bool {
	return len(magic) >= 4 && magic[0]&0xf0 == 0x50 && bytes.Equal(magic[1:4], []byte{0x2a, 0x4d, 0x18})
}

// A derived reader blames the stream for an error of its own, unless reading the stream failed.
type derived struct {
	io.ReadCloser
	from  *noted
	blame func(error) error
}

func (d *derived) Read(p []byte) (int, error) {
	n, err := d.ReadCloser.Read(p)
	switch {
	case err == nil || err == io.EOF:
		return n, err
	case d.from.err != nil && d.from.err != io.EOF:
		return n, d.from.err
	}
	return n, d.blame(err)
}

func cannotDecompress(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the compressed stream is cut short")
	}
	return fault.Invalid.Errorf("decompress: %w", err)
}

// ArchiveError sets the kind of an error from reading a tar archive: Invalid if the archive or
// its compression is to blame.
func ArchiveError(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fault.Invalid.Errorf("read archive: %w", err)
	}
	return err
}
