// Package atomicfile replaces files atomically: a reader, or the machine after a power cut,
// finds either the old content or the new, never a part. Only a power cut may leave a part of a
// file, if its creator accepts that (WriteNew, WriteExpendable), or of one changed on a full disk (Overwrite).
package atomicfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Write replaces the file at path with data and returns once that is on disk:
// the file is synced before the rename, the directory after it (rename(2) alone
// orders nothing).
func Write(path string, data []byte, perm os.FileMode) error {
	return replace(path, data, perm, true, os.Rename)
}

// WriteNew is Write for a file that does not exist yet, in half the time: the file and its name
// are synced in parallel, and a journal commits both at once. In exchange, a power cut before it
// returns may leave part of the file (IsPart).
func WriteNew(path string, data []byte, perm os.FileMode) (err error) {
	if err := replace(path, data, perm, false, os.Rename); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(path)
		}
	}()
	named := make(chan error, 1)
	go func() { named <- SyncDir(filepath.Dir(path)) }()
	err = syncAt(path)
	return errors.Join(err, <-named)
}

// IsPart reports whether data is what a power cut can leave of a file written by WriteNew:
// nothing, zeros, or its beginning; err is the JSON decoder's error for it.
func IsPart(data []byte, err error) bool {
	var syntax *json.SyntaxError
	return len(bytes.Trim(data, "\x00")) == 0 || errors.As(err, &syntax) && syntax.Offset >= int64(len(data))
}

// WriteVolatile is Write without the syncs: atomic for every reader, and lost in a power cut. It
// is for files that a reboot voids anyway, below /run.
func WriteVolatile(path string, data []byte, perm os.FileMode) error {
	return replace(path, data, perm, false, os.Rename)
}

// WriteExpendable is WriteVolatile of which a power cut may leave a part, and nothing of the old content:
// for what is of no use then, and may soon be removed.
func WriteExpendable(path string, data []byte, perm os.FileMode) error {
	return replace(path, data, perm, false, exchange)
}

// WriteJSON is WriteVolatile of v as JSON, with mode 0600. On a full disk it is Overwrite where that
// can be done: what ends must be able to say so, or it would never make room.
func WriteJSON(path string, v any) error {
	return writeJSON(path, v, func(path string, data []byte, perm os.FileMode) error {
		err := WriteVolatile(path, data, perm)
		if IsFull(err) && Overwrite(path, data) == nil {
			return nil
		}
		return err
	})
}

// SaveJSON is Write of v as JSON, with mode 0600.
func SaveJSON(path string, v any) error { return writeJSON(path, v, Write) }

func writeJSON(path string, v any, write func(string, []byte, os.FileMode) error) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	return write(path, data, 0o600)
}

// ReadJSON decodes the file at path. The error is fs.ErrNotExist without one.
func ReadJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

func replace(path string, data []byte, perm os.FileMode, sync bool, rename func(from, to string) error) (err error) {
	dir := filepath.Dir(path)
	// The name starts with a dot and ends with ".tmp", so that leftovers of a crash can be
	// recognized in the directory. It is no longer than NAME_MAX allows, if path is ASCII.
	f, err := os.CreateTemp(dir, fmt.Sprintf(".%.200s.*.tmp", filepath.Base(path)))
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Chmod(perm); err != nil {
		return err
	}
	if sync {
		if err := f.Sync(); err != nil {
			return err
		}
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := rename(f.Name(), path); err != nil {
		return err
	}
	if sync {
		return SyncDir(dir)
	}
	return nil
}

// exchange is os.Rename of a file, but ext4 does not begin to write it to the disk: it does for one that
// replaces another by its rename (auto_da_alloc), and who removes that soon waits until it is written.
func exchange(from, to string) error {
	swap := func() error { return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_EXCHANGE) }
	if swap() != nil { // there is none yet, or the file system cannot
		return os.Rename(from, to)
	}
	if err := unix.Unlink(from); err != nil { // it is a directory
		return errors.Join(&os.LinkError{Op: "rename", Old: from, New: to, Err: err}, swap())
	}
	return nil
}

// IsFull reports whether an error says that the disk has no room, or the user no more of it.
func IsFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// page is how much of a file the kernel changes in one step, in bytes.
const page = 4096

// Overwrite replaces the JSON in an existing file in place and syncs it, which needs no room if it
// fits into the file's last block. If it does not, the file stays as it was. A shorter text is
// padded with blanks, and neither text may be longer than a page, so that one write of one page
// does it; still, a power cut may leave a part of each.
func Overwrite(path string, data []byte) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() > page || len(data) > page {
		return &fs.PathError{Op: "overwrite", Path: path, Err: unix.EFBIG}
	}
	if more := int(info.Size()) - len(data); more > 0 {
		data = slices.Concat(data, bytes.Repeat([]byte(" "), more))
	} else if more < 0 {
		if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, int64(len(data))); err != nil {
			return os.NewSyscallError("fallocate", err)
		}
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		return err
	}
	return f.Sync()
}

// Read is os.ReadFile that retries after a disk error: a transient error is not the file's.
func Read(path string) ([]byte, error) {
	data, _, err := ReadFirst(path, math.MaxInt64)
	return data, err
}

// ReadFirst is Read of the first most bytes of a file, and returns its size.
func ReadFirst(path string, most int64) (data []byte, size int64, err error) {
	for range 2 {
		data, size, err = readFirst(path, most)
		if !errors.Is(err, unix.EIO) {
			break
		}
	}
	return data, size, err
}

func readFirst(path string, most int64) ([]byte, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	data := make([]byte, min(info.Size(), most))
	_, err = io.ReadFull(f, data)
	return data, info.Size(), err
}

// Damaged reports whether err means that its file cannot be read, now or later: it does not
// exist, or the disk does not return it (ext4 and xfs return EUCLEAN and EBADMSG for invalid
// metadata). Other errors, such as EMFILE or ENOMEM, are not the file's, and the file must not
// be considered lost because of them.
func Damaged(err error) bool {
	causes := []error{fs.ErrNotExist, unix.ENOTDIR, unix.EIO, unix.EUCLEAN, unix.EBADMSG}
	return slices.ContainsFunc(causes, func(cause error) bool { return errors.Is(err, cause) })
}

// MakeDirs is os.MkdirAll that returns once the names of the directory at path, and of missing
// parents, are on disk. An existing directory's name is synced too: its creator may have died
// before doing so.
func MakeDirs(path string, perm os.FileMode) error {
	parent := filepath.Dir(path)
	if _, err := os.Stat(parent); errors.Is(err, fs.ErrNotExist) {
		if err := MakeDirs(parent, perm); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(path, perm); err != nil {
		return err
	}
	return SyncDir(parent)
}

// SyncDir makes the names in the directory at path durable.
func SyncDir(path string) error { return syncAt(path) }

func syncAt(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
