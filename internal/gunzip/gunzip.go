// Package gunzip decompresses gzip streams (RFC 1952), with Intel's ISA-L where that is installed
// and with klauspost/compress elsewhere. ISA-L takes 0.35 to 0.4 of the time, and inflating is
// most of what a pull does.
//
// The library is looked for when the first stream is opened (dlopen(3) of libisal.so.2, Debian's
// libisal2), so that a program built with the tag isal runs without it too. Without the tag, or
// without cgo, it is not looked for.
//
// Both read a stream of several members as one, as gzip(1) does, verify the checksum and the
// length of each, and refuse a stream that goes on with anything else.
package gunzip

import (
	"io"

	"github.com/klauspost/compress/gzip"
)

// NewReader returns a reader of what the gzip stream r holds. It reads ahead in r. Close releases
// its memory, and leaves r open.
func NewReader(r io.Reader) (io.ReadCloser, error) {
	if Accelerated() {
		return newFast(r)
	}
	return gzip.NewReader(r)
}
