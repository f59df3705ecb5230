package crilog

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// A log can lose its name while it is being written. Somebody removes it to free its space. Or
// the kubelet reverts a rotation: it renames the log and requests a new one, and if that call
// fails it renames the old log back, over the new one if that exists by then. Whatever made the
// call fail, such as the end of the daemon that should have answered, the Writer may have got
// the request, and then writes to a file that nobody can find.

// maxRescued is how many bytes of such a file are copied to the log: a rotation is reverted
// within seconds.
const maxRescued = 64 << 20

// follow switches to the file at the log's path if the current file has lost its name. If there
// is none it creates one, except for a log that is about to be closed. The caller holds mu.
func (w *Writer) follow(makes bool) {
	if !nameless(w.file) {
		return
	}
	at, err := os.Lstat(w.path)
	there := err == nil
	if there && isFile(at, w.file) || !there && !makes {
		return
	}
	f, err := create(w.path)
	if err != nil {
		return // its directory is gone; retried later
	}
	old := w.file
	w.file = f
	if there && w.alone {
		w.rescue(old)
	}
	w.alone = false
	w.end(old)
}

// nameless reports whether f has been removed, or its file system does not count names.
func nameless(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Nlink == 0
}

// counted reports whether the file system of f, which is or was at path, counts the names of a
// file. Some FUSE file systems report none for every file.
func counted(f *os.File, path string) bool {
	at, err := os.Lstat(path)
	return !nameless(f) || err == nil && !isFile(at, f)
}

func isFile(at os.FileInfo, f *os.File) bool {
	info, err := f.Stat()
	return err == nil && os.SameFile(at, info)
}

// rescue appends the content of old, the log's former file, to the log. The caller holds mu.
func (w *Writer) rescue(old *os.File) {
	n, err := appendFrom(w.file, old)
	var over int64
	if info, serr := old.Stat(); serr == nil {
		over = info.Size() - n
	}
	if over <= 0 && err == nil {
		return
	}
	if err == nil {
		err = errors.New("too much of it is in a removed file")
	}
	if w.lost == 0 {
		w.reportLoss(err, 0)
	}
	w.lost += max(over, 0)
}

// appendFrom appends the first maxRescued bytes of from, which need not be open for reading, to
// the log to, as whole records.
func appendFrom(to, from *os.File) (n int64, err error) {
	if err := mend(to); err != nil {
		return 0, err
	}
	r, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", from.Fd()))
	if err != nil {
		return 0, err
	}
	defer r.Close()
	n, err = io.Copy(to, io.LimitReader(r, maxRescued))
	return n, errors.Join(err, mend(to))
}

// end closes a file that is no longer the log's. The new one is in use: if the old one could not
// be flushed (close(2)), that is no reason to request a new one again.
func (w *Writer) end(old *os.File) {
	if err := old.Close(); err != nil {
		w.reportLoss(err, 0)
	}
}
