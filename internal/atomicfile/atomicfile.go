// Package atomicfile replaces files whole: a reader, or the machine after a
// power cut, finds either the old content or the new, never a part. Only a new
// file may be there in part after a power cut, if its maker says so (WriteNew).
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

// WriteNew is Write of a file that does not exist yet, in half the time: the file and its name
// are synced side by side, and a journal commits both at once. The price: after a power cut
// before it returns, the file may be there in part (IsPart).
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

// IsPart reports whether data is what a power cut can leave of a file that was being written
// by WriteNew: nothing, zeros, or its beginning, err being what its JSON decoder says of it.
func IsPart(data []byte, err error) bool {
	var syntax *json.SyntaxError
	return len(bytes.Trim(data, "\x00")) == 0 || errors.As(err, &syntax) && syntax.Offset >= int64(len(data))
}

// WriteVolatile is Write without the syncs: whole for every reader, and lost with
// the power. It is for files that a reboot voids anyway, below /run.
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
	// The name starts with a dot and keeps the suffix ".tmp", so that whoever
	// lists the directory can tell what a crash left behind.
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*.tmp")
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

// Read is os.ReadFile that tries again if the disk gave an error: an error that passes is not
// the file's.
func Read(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, unix.EIO) {
		data, err = os.ReadFile(path)
	}
	return data, err
}

// Damaged reports whether err means that its file cannot be read, now or later: it does not
// exist, or the disk does not give it back (EUCLEAN and EBADMSG are what ext4 and xfs return
// for metadata that make no sense). Other errors, such as EMFILE or ENOMEM, are not the file's,
// and the file must not be taken for lost because of them.
func Damaged(err error) bool {
	causes := []error{fs.ErrNotExist, unix.ENOTDIR, unix.EIO, unix.EUCLEAN, unix.EBADMSG}
	return slices.ContainsFunc(causes, func(cause error) bool { return errors.Is(err, cause) })
}

// MakeDirs is os.MkdirAll that returns once the directory at path has its name on disk, and so
// have missing parents. An existing directory's name is synced too: its maker may have died
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
