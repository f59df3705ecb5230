//go:build !isal || !cgo

package gunzip

import (
	"errors"
	"io"
)

// Accelerated reports whether ISA-L is used.
func Accelerated() bool { return false }

func newFast(io.Reader) (io.ReadCloser, error) { return nil, errors.ErrUnsupported }
