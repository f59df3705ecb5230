// Package gunzip decompresses gzip streams (RFC 1952), with Intel's ISA-L where that is
// installed and with klauspost/compress elsewhere. ISA-L takes 0.35 to 0.4 of the time, and
// inflating is most of the work of a pull.
//
// The library is loaded when the first stream is opened (dlopen(3) of libisal.so.2, Debian's
// libisal2), so a program built with the tag isal also runs without it. Without the tag, or
// without cgo, it is not loaded.
//
// Both read a stream of several members as one, like gzip(1), verify the checksum and the length
// of each, and refuse a stream with anything else after them.
package gunzip

import (
	"io"

	"github.com/klauspost/compress/gzip"
)

// NewReader returns a reader of the decompressed gzip stream r. It reads ahead in r. Close
// releases its memory, and leaves r open.
func NewReader(r io.Reader) (io.ReadCloser, error) {
	if Accelerated() {
		return newFast(r)
	}
	return gzip.NewReader(r)
}
