package erofs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/crisp-cri/crisp/internal/fault"
)

// Digest reads the superblock and the metadata of a file system written by a Writer, and returns
// their SHA-256 in hex: everything except the content of regular files. The error is
// fault.Invalid if the file is not such a file system, or too short.
func Digest(ctx context.Context, f io.ReaderAt) (string, error) {
	first := make([]byte, BlockSize)
	if _, err := f.ReadAt(first, 0); err != nil {
		return "", truncatedError("superblock", err)
	}
	super := first[superAt:]
	if order.Uint32(super) != magic {
		return "", fault.Invalid.Errorf("the file has no EROFS superblock")
	}
	end, base := int64(order.Uint32(super[36:]))<<blockBits, int64(order.Uint32(super[40:]))<<blockBits
	sum := sha256.New()
	sum.Write(first)
	for at := base; at < end; at += flushSize { // a layer can have GBs
		size := min(flushSize, end-at)
		n, err := io.Copy(sum, io.NewSectionReader(f, at, size))
		if err == nil && n != size {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return "", truncatedError("metadata", err)
		}
		if err := ctx.Err(); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func truncatedError(what string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fault.Invalid.Errorf("EROFS %s: %w", what, err)
	}
	return fmt.Errorf("read EROFS %s: %w", what, err)
}
