// Package atomicfile replaces files atomically: a reader, or the machine after a power cut,
// finds either the old content or the new, never a part. Only a new file may be partly there
// after a power cut, if its creator accepts that (WriteNew).
package atomicfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Write replaces the file at path with data and returns once that is on disk:
// the file is synced before the rename, the directory after it (rename(2) alone
// orders nothing).
func Write(path string, data []byte, perm os.FileMode) error {
	return replace(path, data, perm, true)
}

// WriteNew is Write for a file that does not exist yet, in half the time: the file and its name
// are synced in parallel, and a journal commits both at once. In exchange, a power cut before it
// returns may leave part of the file (IsPart).
func WriteNew(path string, data []byte, perm os.FileMode) (err error) {
	if err := replace(path, data, perm, false); err != nil {
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
	return replace(path, data, perm, false)
}

// WriteJSON is WriteVolatile of v as JSON, with mode 0600.
func WriteJSON(path string, v any) error { return writeJSON(path, v, WriteVolatile) }

// SaveJSON is Write of v as JSON, with mode 0600.
func SaveJSON(path string, v any) error { return writeJSON(path, v, Write) }

func writeJSON(path string, v any, write func(string, []byte, os.FileMode) error) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	return write(path, data, 0o600)
}

// ReadJSON decodes the file at path. The error is fs.ErrNotExist if there is none.
func ReadJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

func replace(path string, data []byte, perm os.FileMode, sync bool) (err error) {
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
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	if sync {
		return SyncDir(dir)
	}
	return nil
}

// Read is os.ReadFile that retries after a disk error: a transient error is not the file's.
func Read(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, unix.EIO) {
		data, err = os.ReadFile(path)
	}
	return data, err
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
