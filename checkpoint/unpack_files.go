package checkpoint

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
)

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
