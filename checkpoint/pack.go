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
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/tree"
)

// Pack writes the directory dir as an archive to the path file, whose directory exists. The
// archive has mode 0600, because it holds the memory of processes. It appears complete or not at
// all, and replaces an existing one.
func Pack(ctx context.Context, dir, file string) (err error) {
	parent := filepath.Dir(file)
	out, err := createNameless(file)
	if err != nil {
		return fmt.Errorf("make checkpoint archive in %s: %w", parent, err)
	}
	defer out.discard()
	if err := PackFiles(ctx, dir, out); err != nil {
		return fmt.Errorf("write checkpoint archive %s: %w", file, err)
	}
	if err := out.Sync(); err != nil {
		return fmt.Errorf("write checkpoint archive %s: %w", file, err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := out.name(); err != nil {
		return fmt.Errorf("name checkpoint archive %s: %w", file, err)
	}
	return atomicfile.SyncDir(parent)
}

// PackFiles writes the directories and regular files below dir as a tar stream.
// Files may change meanwhile, if another process has them open.
func PackFiles(ctx context.Context, dir string, out io.Writer) error {
	buffered := bufio.NewWriterSize(out, 1<<20)
	tw := tar.NewWriter(buffered)
	err := tree.Walk(ctx, dir, tree.Options{Sorted: true}, func(f *tree.File) error { return add(tw, f) })
	if err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return err
	}
	return buffered.Flush()
}

// maxPath bounds the paths in an archive: longer ones are unusable.
const maxPath = unix.PathMax - 1

// add writes one file to the archive. It leaves out anything but directories and regular files,
// such as CRIU's sockets, and files removed meanwhile.
func add(tw *tar.Writer, file *tree.File) error {
	kind := file.Stat.Mode & unix.S_IFMT
	if file.IsTop() || kind != unix.S_IFDIR && kind != unix.S_IFREG {
		return nil
	}
	if file.PathLen() > maxPath {
		return fault.Invalid.Errorf("a path of %d bytes is too long for an archive", file.PathLen())
	}
	hdr := &tar.Header{Name: file.Path(), Uid: int(file.Stat.Uid), Gid: int(file.Stat.Gid)}
	if kind == unix.S_IFDIR {
		hdr.Typeflag, hdr.Name = tar.TypeDir, hdr.Name+"/"
		hdr.Mode, hdr.ModTime = int64(file.Stat.Mode&0o7777), time.Unix(file.Stat.Mtim.Unix())
		return tw.WriteHeader(hdr)
	}
	// By now the name may be a symlink to elsewhere, or a pipe.
	fd, err := unix.Openat(file.Dir, file.Name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT || err == unix.ELOOP || err == unix.ENXIO {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: hdr.Name, Err: err}
	}
	f := os.NewFile(uintptr(fd), hdr.Name)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: hdr.Name, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	hdr.Typeflag, hdr.Size, hdr.Uid, hdr.Gid = tar.TypeReg, st.Size, int(st.Uid), int(st.Gid)
	hdr.Mode, hdr.ModTime = int64(st.Mode&0o7777), time.Unix(st.Mtim.Unix())
	if err := tw.WriteHeader(hdr); err != nil {
		return err
	}
	_, err = io.CopyN(tw, io.MultiReader(f, zeroes{}), hdr.Size) // it may have been truncated
	return err
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// A nameless is a file of mode 0600 that has no name until it is complete: a crash before that
// leaves nothing.
type nameless struct {
	*os.File
	path  string // its final path
	aside string // its temporary path, if the file system does not support O_TMPFILE
}

// openTmpfile opens a file without a name in the directory dir. Tests replace it.
var openTmpfile = func(dir string) (int, error) {
	return unix.Open(dir, unix.O_RDWR|unix.O_TMPFILE|unix.O_CLOEXEC, 0o600)
}

// createNameless creates a file for path, whose directory exists. NFS and some others do not
// support O_TMPFILE (open(2): EOPNOTSUPP): there a crash leaves a file whose name begins with a
// dot and ends with ".tmp".
func createNameless(path string) (*nameless, error) {
	fd, err := openTmpfile(filepath.Dir(path))
	if err == nil {
		return &nameless{File: os.NewFile(uintptr(fd), path), path: path}, nil
	}
	if err != unix.EOPNOTSUPP {
		return nil, err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return nil, err
	}
	return &nameless{File: f, path: path, aside: f.Name()}, nil
}

// name gives the file its path, replacing any file there.
func (f *nameless) name() error {
	if f.aside == "" {
		from := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
		err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, f.path, unix.AT_SYMLINK_FOLLOW)
		if err != unix.EEXIST {
			return err
		}
		aside := fmt.Sprintf("%s.%d.new", f.path, os.Getpid())
		if err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, aside, unix.AT_SYMLINK_FOLLOW); err != nil {
			return err
		}
		f.aside = aside
	}
	if err := os.Rename(f.aside, f.path); err != nil {
		return err
	}
	f.aside = ""
	return nil
}

// discard closes the file, which deletes it unless it was named.
func (f *nameless) discard() error {
	err := f.Close()
	if f.aside != "" {
		err = errors.Join(err, os.Remove(f.aside))
	}
	return err
}
