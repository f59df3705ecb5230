package checkpoint

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/atomicfile"
)

// Pack writes the directory dir as an archive to the path file, whose directory is
// there. It has mode 0600, because it has the memory of processes in it, and
// appears whole or not at all; one that was there is replaced.
func Pack(ctx context.Context, dir, file string) (err error) {
	parent := filepath.Dir(file)
	// It has no name until it is whole: then a crash leaves nothing.
	fd, err := unix.Open(parent, unix.O_RDWR|unix.O_TMPFILE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("make checkpoint archive in %s: %w", parent, err)
	}
	out := os.NewFile(uintptr(fd), file)
	defer out.Close()
	if err := pack(ctx, dir, out); err != nil {
		return fmt.Errorf("write checkpoint archive %s: %w", file, err)
	}
	if err := out.Sync(); err != nil {
		return fmt.Errorf("write checkpoint archive %s: %w", file, err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := name(fd, file); err != nil {
		return fmt.Errorf("name checkpoint archive %s: %w", file, err)
	}
	return atomicfile.SyncDir(parent)
}

// name gives the unnamed file its path, in place of what is there.
func name(fd int, file string) error {
	from := fmt.Sprintf("/proc/self/fd/%d", fd)
	err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, file, unix.AT_SYMLINK_FOLLOW)
	if err != unix.EEXIST {
		return err
	}
	aside := fmt.Sprintf("%s.%d.new", file, os.Getpid())
	if err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, aside, unix.AT_SYMLINK_FOLLOW); err != nil {
		return err
	}
	if err := os.Rename(aside, file); err != nil {
		return errors.Join(err, os.Remove(aside))
	}
	return nil
}

func pack(ctx context.Context, dir string, out io.Writer) error {
	buffered := bufio.NewWriterSize(out, 1<<20)
	tw := tar.NewWriter(buffered)
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || file == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		hdr, err := tar.FileInfoHeader(info, "")
		if err != nil {
			return err
		}
		hdr.Name = strings.TrimPrefix(file, dir+"/")
		hdr.Uname, hdr.Gname = "", ""
		switch {
		case d.IsDir():
			hdr.Name += "/"
			return tw.WriteHeader(hdr)
		case !info.Mode().IsRegular():
			return nil // a socket of CRIU's
		}
		if err := tw.WriteHeader(hdr); err != nil {
			return err
		}
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.CopyN(tw, io.MultiReader(f, zeroes{}), info.Size()) // it may have been cut
		return err
	})
	if err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return err
	}
	return buffered.Flush()
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// PackFiles writes the directories and regular files below dir as a tar stream.
// Files may change meanwhile, if somebody else has them too.
func PackFiles(ctx context.Context, dir string, w io.Writer) error { return pack(ctx, dir, w) }
