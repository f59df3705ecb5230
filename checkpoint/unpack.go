package checkpoint

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
)

// maxEntries bounds the number of entries read from an archive. CRIU writes about five files per
// process.
const maxEntries = 1 << 20

// Unpack reads an archive, plain or compressed by gzip or zstd, and writes the files of a
// checkpoint below dir, which is empty; it skips other entries. The archive is untrusted: only
// regular files with known names, or directly below Images, are extracted, with at most max
// bytes in total. The error is fault.Invalid if the archive is to blame.
func Unpack(ctx context.Context, archive io.Reader, dir string, max int64) error {
	plain, err := decompress(archive)
	if err != nil {
		return err
	}
	defer plain.Close()
	if err := os.Mkdir(filepath.Join(dir, Images), 0o700); err != nil {
		return err
	}
	tr := tar.NewReader(interruptible{ctx, blaming{plain}})
	return eachEntry(ctx, tr, "the checkpoint archive", func(hdr *tar.Header) error {
		name, ok := entryName(hdr)
		if !ok {
			return nil
		}
		if hdr.Typeflag != tar.TypeReg {
			return fault.Invalid.Errorf("%q in the checkpoint archive is no regular file", hdr.Name)
		}
		if max -= hdr.Size; max < 0 {
			return fault.Invalid.Errorf("the checkpoint archive has more in it than there is room for")
		}
		return extract(ctx, tr, filepath.Join(dir, name), hdr.Size)
	})
}

// eachEntry calls f with each entry of the archive that what names.
func eachEntry(ctx context.Context, tr *tar.Reader, what string, f func(*tar.Header) error) error {
	for range maxEntries {
		if err := ctx.Err(); err != nil {
			return err
		}
		hdr, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fault.Invalid.Errorf("read %s: %w", what, err)
		}
		if err := f(hdr); err != nil {
			return err
		}
	}
	return fault.Invalid.Errorf("%s has more than %d entries", what, maxEntries)
}

// An interruptible reader ends with its context. Skipped entries are read too, and a few
// compressed bytes may expand to very many.
type interruptible struct {
	ctx context.Context
	r   io.Reader
}

func (i interruptible) Read(p []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	return i.r.Read(p)
}

// A blaming reader turns an error into fault.Invalid, for a damaged archive, unless the disk or
// the caller caused it: damage in the middle of a file is only found while the file is being
// written.
type blaming struct{ r io.Reader }

func (b blaming) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err != nil && err != io.EOF && !isOurs(err) && fault.KindOf(err) == fault.Internal &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		err = fault.Invalid.Errorf("read checkpoint archive: %w", err)
	}
	return n, err
}

// entryName returns where to write an entry of an archive; false = skip it.
func entryName(hdr *tar.Header) (string, bool) {
	if hdr.Typeflag == tar.TypeDir || hdr.Typeflag == tar.TypeXGlobalHeader {
		return "", false
	}
	// "checkpoint/../x" is not resolved, but skipped.
	name := strings.TrimPrefix(strings.TrimPrefix(hdr.Name, "./"), "/")
	if slices.Contains(known, name) {
		return name, true
	}
	dir, base := path.Split(name)
	return name, dir == Images+"/" && base != "" && base != "." && base != ".."
}

func extract(ctx context.Context, r io.Reader, file string, size int64) error {
	// O_EXCL: a duplicate name is an attack.
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENAMETOOLONG) || errors.Is(err, unix.EINVAL) {
			err = fault.Invalid.Errorf("checkpoint archive: %w", err)
		}
		return err
	}
	for left := size; left > 0 && err == nil; {
		var n int64
		n, err = io.CopyN(f, r, min(left, 8<<20))
		left -= n
		if err == nil {
			err = ctx.Err()
		}
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fault.Invalid.Errorf("the checkpoint archive ends within %s", filepath.Base(file))
	}
	return err
}

// The magic numbers of compressed files: RFC 1952, RFC 8878.
var gzipMagic, zstdMagic = []byte{0x1f, 0x8b}, []byte{0x28, 0xb5, 0x2f, 0xfd}

// compressed reports whether the first four bytes are those of a compressed file.
func compressed(magic []byte) bool {
	return bytes.HasPrefix(magic, gzipMagic) || bytes.Equal(magic, zstdMagic)
}

// decompress detects the compression by the first bytes.
func decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 1<<20)
	magic, err := b.Peek(4)
	if err != nil {
		return nil, fault.Invalid.Errorf("not a checkpoint archive: %w", err)
	}
	switch {
	case bytes.HasPrefix(magic, gzipMagic):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, fault.Invalid.Errorf("read checkpoint archive: %w", err)
		}
		return z, nil
	case bytes.Equal(magic, zstdMagic):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return nil, fault.Invalid.Errorf("read checkpoint archive: %w", err)
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(b), nil
}

// Copy copies a checkpoint's directory, which must not change, to dir, which is empty. It leaves
// out what Unpack would skip in an archive.
func Copy(ctx context.Context, from, dir string, max int64) error {
	if err := os.Mkdir(filepath.Join(dir, Images), 0o700); err != nil {
		return err
	}
	names := slices.Clone(known)
	images, err := openIn(from, Images, unix.O_DIRECTORY)
	if err != nil {
		return fault.Invalid.Errorf("not a checkpoint: %w", err)
	}
	defer images.Close()
	entries, err := images.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range entries {
		names = append(names, Images+"/"+name)
	}
	for _, name := range names {
		f, err := OpenFile(from, name)
		if errors.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return err
		}
		info, err := f.Stat()
		if err == nil {
			if max -= info.Size(); max < 0 {
				err = fault.Unavailable.Errorf("no space for the checkpoint")
			}
		}
		if err == nil {
			err = extract(ctx, f, filepath.Join(dir, name), info.Size())
		}
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// UnpackFiles is the inverse of PackFiles: it writes the directories and regular files of the
// stream that do not exist yet below dir. The stream is untrusted.
func UnpackFiles(ctx context.Context, r io.Reader, dir string) error {
	root, err := os.OpenRoot(dir) // confines all paths to dir
	if err != nil {
		return err
	}
	defer root.Close()
	tr := tar.NewReader(r)
	return eachEntry(ctx, tr, "the archive of the checkpoint's files", func(hdr *tar.Header) error {
		switch err := unpackFile(root, hdr, tr); {
		case err == nil || errors.Is(err, fs.ErrExist):
			return nil
		case isOurs(err):
			return fmt.Errorf("file %.300q of the checkpoint: %w", hdr.Name, err)
		default: // an impossible name, a file in place of a directory, a truncated stream
			return fault.Invalid.Errorf("file %.300q of the checkpoint: %w", hdr.Name, err)
		}
	})
}

// isOurs reports whether the disk or the machine caused an error, not the stream.
func isOurs(err error) bool {
	return slices.ContainsFunc([]error{unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.EROFS, unix.EMFILE, unix.ENFILE, unix.ENOMEM}, func(is error) bool { return errors.Is(err, is) })
}

func unpackFile(root *os.Root, hdr *tar.Header, r io.Reader) error {
	name, mode := path.Clean(strings.TrimLeft(hdr.Name, "/")), fs.FileMode(hdr.Mode&0o777)
	if name == "." {
		return nil
	}
	switch hdr.Typeflag {
	case tar.TypeDir:
		if err := root.Mkdir(name, 0o700); err != nil {
			return err
		}
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.CopyN(f, r, hdr.Size)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
	default:
		return nil
	}
	if err := root.Lchown(name, hdr.Uid, hdr.Gid); err != nil {
		return err
	}
	return root.Chmod(name, mode)
}
