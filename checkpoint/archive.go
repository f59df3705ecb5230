package checkpoint

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
)

// A checkpoint of a container is a directory, or a tar archive of one, in the form
// that Podman, CRI-O and containerd write and checkpointctl reads:
//
//	config.dump            which container it was, see Container
//	spec.dump              its OCI configuration
//	checkpoint/            what CRIU wrote
//	dump.log, stats-dump   CRIU's log and figures
//	rootfs-diff.tar        files that it wrote in its root file system
//	deleted.files          paths that it removed there: a JSON list
//	devshm-checkpoint.tar  files in /dev/shm
//	container.log          its log, as it was
//	crisp.dump             what only crisp reads, see the server
const (
	ConfigDump   = "config.dump"
	SpecDump     = "spec.dump"
	Images       = "checkpoint"
	DumpLog      = "dump.log"
	StatsDump    = "stats-dump"
	RootFSDiff   = "rootfs-diff.tar"
	DeletedFiles = "deleted.files"
	DevShm       = "devshm-checkpoint.tar"
	ContainerLog = "container.log"
	CrispDump    = "crisp.dump"
)

// known are the files of a checkpoint, besides those below Images, that are taken
// from somebody's archive. Others write more, for themselves.
var known = []string{ConfigDump, SpecDump, RootFSDiff, DeletedFiles, DevShm, CrispDump}

// A Container is the content of config.dump: the fields that all who write it
// agree on, by the names that checkpointctl has for them.
type Container struct {
	ID              string    `json:"id"`
	Name            string    `json:"name"`
	RootfsImage     string    `json:"rootfsImage,omitempty"`     // as the user wrote it
	RootfsImageRef  string    `json:"rootfsImageRef,omitempty"`  // its ID; others write a reference by digest
	RootfsImageName string    `json:"rootfsImageName,omitempty"` // by which it can be pulled
	Runtime         string    `json:"runtime,omitempty"`
	CreatedTime     time.Time `json:"createdTime"`
	CheckpointedAt  time.Time `json:"checkpointedTime"`
	RestoredAt      time.Time `json:"restoredTime"`
	Restored        bool      `json:"restored"`
}

// Write writes v as JSON into the file name of a checkpoint's directory.
func Write(dir, name string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	return os.WriteFile(filepath.Join(dir, name), data, 0o600)
}

// maxDocument bounds what is read of one of the JSON files, in bytes.
const maxDocument = 32 << 20

// Read reads a JSON file of a checkpoint's directory. One that is missing is
// fault.NotFound, one that cannot be understood fault.Invalid.
func Read(dir, name string, v any) error {
	f, err := OpenFile(dir, name)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxDocument+1))
	if err != nil {
		return err
	}
	if len(data) > maxDocument {
		return fault.Invalid.Errorf("%s of the checkpoint has more than %d bytes", name, maxDocument)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fault.Invalid.Errorf("%s of the checkpoint: %w", name, err)
	}
	return nil
}

// OpenFile opens a regular file of a checkpoint's directory. The directory may be
// somebody's image: no link is followed in it.
func OpenFile(dir, name string) (*os.File, error) {
	f, err := openIn(dir, name, unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fault.Invalid.Errorf("%s of the checkpoint is no regular file", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func openIn(dir, name string, flags uint64) (*os.File, error) {
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fault.Invalid.Errorf("checkpoint %s: %w", dir, err)
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_CLOEXEC | flags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err == unix.ENOENT {
		return nil, fault.NotFound.Errorf("the checkpoint has no %s", name)
	}
	if err != nil {
		return nil, fault.Invalid.Errorf("%s of the checkpoint: %w", name, err)
	}
	return os.NewFile(uintptr(fd), filepath.Join(dir, name)), nil
}

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

// maxEntries bounds how many entries of an archive are looked at. CRIU writes some
// five files for each process.
const maxEntries = 1 << 20

// Unpack reads an archive, plain or compressed by gzip or zstd, and writes what
// belongs to a checkpoint below dir, which is empty; what else is in it is passed
// over. The archive is hostile: only regular files are taken, by names that are
// known beforehand or lie directly below Images, and no more than max bytes of them.
// fault.Invalid blames the archive.
func Unpack(ctx context.Context, archive io.Reader, dir string, max int64) error {
	plain, err := decompress(archive)
	if err != nil {
		return err
	}
	defer plain.Close()
	if err := os.Mkdir(filepath.Join(dir, Images), 0o700); err != nil {
		return err
	}
	tr := tar.NewReader(plain)
	for range maxEntries {
		if err := ctx.Err(); err != nil {
			return err
		}
		hdr, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fault.Invalid.Errorf("read checkpoint archive: %w", err)
		}
		name, ok := entryName(hdr)
		if !ok {
			continue
		}
		if hdr.Typeflag != tar.TypeReg {
			return fault.Invalid.Errorf("%q in the checkpoint archive is no regular file", hdr.Name)
		}
		if max -= hdr.Size; max < 0 {
			return fault.Invalid.Errorf("the checkpoint archive has more in it than there is room for")
		}
		if err := extract(ctx, tr, filepath.Join(dir, name), hdr.Size); err != nil {
			return err
		}
	}
	return fault.Invalid.Errorf("the checkpoint archive has more than %d entries", maxEntries)
}

// entryName is where an entry of an archive belongs; false = nowhere.
func entryName(hdr *tar.Header) (string, bool) {
	if hdr.Typeflag == tar.TypeDir || hdr.Typeflag == tar.TypeXGlobalHeader {
		return "", false
	}
	// "checkpoint/../x" is not to be understood, but left alone.
	name := strings.TrimPrefix(strings.TrimPrefix(hdr.Name, "./"), "/")
	if slices.Contains(known, name) {
		return name, true
	}
	dir, base := path.Split(name)
	return name, dir == Images+"/" && base != "" && base != "." && base != ".."
}

func extract(ctx context.Context, r io.Reader, file string, size int64) error {
	// O_EXCL: a name that comes twice is a trick.
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

// decompress looks at the first bytes.
func decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 1<<20)
	magic, err := b.Peek(4)
	if err != nil {
		return nil, fault.Invalid.Errorf("this is no checkpoint archive: %w", err)
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, fault.Invalid.Errorf("read checkpoint archive: %w", err)
		}
		return z, nil
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return nil, fault.Invalid.Errorf("read checkpoint archive: %w", err)
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(b), nil
}

// Copy copies a checkpoint's directory, which stays as it is, to dir, which is
// empty. What Unpack would not take of an archive it does not take either.
func Copy(ctx context.Context, from, dir string, max int64) error {
	if err := os.Mkdir(filepath.Join(dir, Images), 0o700); err != nil {
		return err
	}
	names := slices.Clone(known)
	images, err := openIn(from, Images, unix.O_DIRECTORY)
	if err != nil {
		return fault.Invalid.Errorf("this is no checkpoint: %w", err)
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
				err = fault.Unavailable.Errorf("there is no room for the checkpoint")
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

// PackFiles writes the directories and regular files below dir as a tar stream.
// Files may change meanwhile, if somebody else has them too.
func PackFiles(ctx context.Context, dir string, w io.Writer) error { return pack(ctx, dir, w) }

// UnpackFiles is the reverse: it makes those of the directories and regular files in
// the stream below dir that are not there. The stream is hostile.
func UnpackFiles(ctx context.Context, r io.Reader, dir string) error {
	root, err := os.OpenRoot(dir) // which nothing leads out of
	if err != nil {
		return err
	}
	defer root.Close()
	tr := tar.NewReader(r)
	for range maxEntries {
		if err := ctx.Err(); err != nil {
			return err
		}
		hdr, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fault.Invalid.Errorf("read files of the checkpoint: %w", err)
		}
		if err := unpackFile(root, hdr, tr); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("file %q of the checkpoint: %w", hdr.Name, err)
		}
	}
	return fault.Invalid.Errorf("the checkpoint has more than %d files", maxEntries)
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
