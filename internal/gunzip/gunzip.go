// Package gunzip decompresses gzip streams (RFC 1952), with Intel's ISA-L where that is
// installed and with klauspost/compress elsewhere. ISA-L takes 0.35 to 0.4 of the time, and
// inflating is most of the work of a pull.
//
// The library is loaded when the first stream is opened (dlopen(3) of libisal.so.2, Debian's
// libisal2), so a program built with the tag isal also runs without it. Without the tag, or
// without cgo, it is not loaded.
//
// Both read a stream of several members as one, like gzip(1), and verify the checksum and the
// length of each. Like gzip(1) they ignore zeros after the last one, with which some tools pad
// streams; anything else there is an error.
package gunzip

import (
	"bufio"
	"cmp"
	"errors"
	"io"

	"github.com/klauspost/compress/gzip"
)

// NewReader returns a reader of the decompressed gzip stream r. It reads ahead in r. Close
// releases its memory, and leaves r open.
func NewReader(r io.Reader) (io.ReadCloser, error) {
	if Accelerated() {
		return newFast(r)
	}
	return newPortable(r)
}

// inputSize is the size in bytes of each read.
const inputSize = 64 << 10

// errTrailing is the error for a stream that goes on after its last member.
var errTrailing = errors.New("gzip stream is followed by something else")

// another reports whether a member follows the one that has just ended. An error means that in
// does not end there either.
func another(in *bufio.Reader) (bool, error) {
	magic, err := in.Peek(1)
	if err == io.EOF {
		return false, nil
	}
	if err != nil || magic[0] == 0x1f {
		return err == nil, err
	}
	for {
		switch b, err := in.ReadByte(); {
		case err == io.EOF:
			return false, nil
		case err != nil:
			return false, err
		case b != 0:
			return false, errTrailing
		}
	}
}

// A portable reader inflates with klauspost/compress.
type portable struct {
	z  *gzip.Reader // of one member
	in *bufio.Reader
}

func newPortable(r io.Reader) (io.ReadCloser, error) {
	in := bufio.NewReaderSize(r, inputSize)
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, early(err)
	}
	z.Multistream(false)
	return &portable{z, in}, nil
}

// Read implements io.Reader.
func (p *portable) Read(data []byte) (n int, err error) {
	n, err = p.z.Read(data)
	for n == 0 && err == io.EOF {
		more, bad := another(p.in)
		if !more {
			return 0, cmp.Or(bad, io.EOF)
		}
		if err := p.z.Reset(p.in); err != nil {
			return 0, early(err)
		}
		p.z.Multistream(false)
		n, err = p.z.Read(data)
	}
	if err == io.EOF {
		err = nil // ask again
	}
	return n, err
}

// Close implements io.Closer.
func (p *portable) Close() error { return p.z.Close() }

// early returns the error of a read within a member.
func early(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
