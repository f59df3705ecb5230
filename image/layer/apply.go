package layer

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"path"

	"github.com/crisp-cri/crisp/internal/fault"
	"golang.org/x/sys/unix"
)

// Extract reads a plain tar stream to its end and extracts its entries into dir, which need not
// be empty. Names that look like whiteouts are ordinary files.
func Extract(ctx context.Context, r io.Reader, dir string) error {
	_, err := unpackInto(ctx, r, dir, unpacking{plain: true}, new(growth))
	return err
}

// ApplyChanges applies a diff to the directory root: it extracts the tar stream r, and removes
// the paths deleted, which are absolute. The diff is untrusted: fault.Invalid blames it. Nothing
// else may change the directory meanwhile.
func ApplyChanges(ctx context.Context, root string, r io.Reader, deleted []string) error {
	if err := Extract(ctx, r, root); err != nil {
		return err
	}
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: root, Err: err}
	}
	u := newUnpacker(ctx, fd, root)
	defer u.dirs.close()
	for _, name := range deleted {
		if err := ctx.Err(); err != nil {
			return err
		}
		clean, err := inside(name)
		if err != nil {
			return err
		}
		if clean == "." {
			return fault.Invalid.Errorf("the root directory cannot have been removed")
		}
		parent, base := path.Split(clean)
		dir, err := u.dirs.find(path.Clean(parent))
		if err == unix.ENOENT || err == unix.ENOTDIR {
			continue // it was removed with its parent
		}
		if err != nil {
			return fault.Invalid.Errorf("removed file %q: %w", name, err)
		}
		err = u.clear(dir, clean, base)
		unix.Close(dir)
		if err != nil {
			return fmt.Errorf("remove %q: %w", name, err)
		}
	}
	return nil
}
