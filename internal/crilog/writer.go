package crilog

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Writer appends a container's output to its log. Streams may be written from
// several goroutines; records are never mixed, torn or out of order in time.
type Writer struct {
	path   string
	max    int
	limit  Limit
	report func(err error, lost int64)

	mu     sync.Mutex
	file   *os.File
	alone  bool // the file began empty in place of another, or that is unknown; guarded by mu, as are the others
	closed bool
	last   time.Time // of the latest record
	lost   int64     // bytes of output dropped since the last successful write
}

// buffers are used by Writers while they write: a silent container holds none, and a busy one
// makes no garbage.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// keep is the size up to which buffers are reused, for 64 KiB of lines of a few bytes.
const keep = 4 << 20

// Open opens the log at path for appending and creates it, mode 0640, and its directory if they
// are missing. A max of 0 is MaxLine. The Writer rotates the log to keep to limit.
//
// Output that cannot be written is dropped, because a container must not wait for a full disk:
// report is called with the reason when the first byte is lost, and with a nil error and the
// number of bytes when writing works again.
func Open(path string, max int, limit Limit, report func(err error, lost int64)) (*Writer, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := create(path)
	if err != nil {
		return nil, err
	}
	if err := mend(f); err != nil {
		f.Close()
		return nil, err
	}
	w := Resume(f, path, max, limit, report)
	w.alone = false
	return w, nil
}

// mend ends the last record of a log whose writer was killed while writing; otherwise the next
// record would continue it.
func mend(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() || fi.Size() == 0 {
		return nil
	}
	r, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd())) // f is write-only
	if err != nil {
		return err
	}
	defer r.Close()
	last := make([]byte, 1)
	if _, err := r.ReadAt(last, fi.Size()-1); err != nil || last[0] == '\n' {
		return err
	}
	_, err = f.Write([]byte{'\n'})
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return nil // there is no space for the next record either
	}
	return err
}

// Resume is Open for a log that is already open; the Writer takes ownership of f.
func Resume(f *os.File, path string, max int, limit Limit, report func(err error, lost int64)) *Writer {
	if max <= 0 {
		max = MaxLine
	}
	return &Writer{path: path, max: max, limit: limit, report: report, file: f, alone: counted(f, path)}
}

// create opens a log for appending. A pod with write access to the log directory could put
// something else there: a symlink could lead to any file of the host, and a FIFO would block the
// writer.
func create(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o640)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("log %s is a symbolic link: %w", path, err)
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("log %s is not a regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// A Keeper keeps the bytes being written until they are in the log, in case the writer is killed.
type Keeper interface {
	// Writing is called before a write to a file of that inode and size.
	Writing(inode uint64, size int64)
	// Written is called after it, and before the next write to the log: n more bytes of the output
	// are in the log or lost.
	Written(n int)
}

// Write appends the records of p, with one write(2) if no rotation is due, and notifies k if that is
// not nil. It returns no error: see Open.
func (w *Writer) Write(stream string, p []byte, k Keeper) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(p) == 0 {
		if k != nil {
			k.Written(0)
		}
		return
	}
	w.setTime()
	w.follow(true)
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for len(p) > 0 {
		n := w.write(stream, p, k, buf)
		if k != nil {
			k.Written(n)
		}
		p = p[n:]
	}
}

// write writes the records of p that fit into the file, or into a new one if none does, and returns
// how much of p these are. It uses buf. The caller holds mu.
func (w *Writer) write(stream string, p []byte, k Keeper, buf *[]byte) int {
	var st unix.Stat_t
	data, part := []byte(nil), 0
	for {
		known := unix.Fstat(int(w.file.Fd()), &st) == nil
		room := w.limit.room(st.Size)
		data, part = appendUpTo((*buf)[:0], w.last, stream, p, w.max, room)
		if cap(data) <= keep {
			*buf = data
		}
		if known && int64(len(data)) > room && st.Size > 0 {
			if err := w.rotate(st.Size); err != nil {
				w.lose(fmt.Errorf("rotate: %w", err), int64(len(p)))
				return len(p)
			}
			continue
		}
		if known && k != nil {
			k.Writing(st.Ino, st.Size)
		}
		break
	}
	n, err := w.file.Write(data)
	if err != nil {
		w.drop(data, n, int64(part), err)
		return part
	}
	if w.lost > 0 {
		w.reportLoss(nil, w.lost)
		w.lost = 0
	}
	return part
}

// wrongClock is how far the clock must have been ahead for times in the log to follow it back.
const wrongClock = time.Minute

// setTime sets the time of the next record. If the clock is set back by some seconds, times in
// the log do not go back, because readers search for times there. A clock that was wrong is
// followed back: otherwise all records would have the same time until it is reached again.
func (w *Writer) setTime() {
	if now := time.Now().UTC().Round(0); now.After(w.last) || w.last.Sub(now) > wrongClock {
		w.last = now
	}
}

// Complete appends to the log at path the records of p, which a Keeper has kept for a Writer
// that was killed. If size is not negative, the Writer was writing them when the file with that
// inode had that size: whole records that it had written stay.
func Complete(path, stream string, p []byte, max int, limit Limit, k Keeper, inode uint64, size int64) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := create(path)
	if err != nil {
		return err
	}
	w := Resume(f, path, max, limit, func(lost error, _ int64) { err = cmp.Or(err, lost) })
	defer w.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if size < 0 || st.Ino != inode || st.Size < size {
		if err := mend(f); err != nil {
			return err
		}
	} else {
		written, err := cutTorn(f, size, st.Size)
		if err != nil {
			return err
		}
		all := p
		for range written {
			_, n := appendUpTo(nil, w.last, stream, p, w.max, 0)
			p = p[n:]
		}
		k.Written(len(all) - len(p))
	}
	w.Write(stream, p, k)
	return err
}

// cutTorn removes an incomplete record from the end of f, and returns the number of records
// after the first size bytes.
func cutTorn(f *os.File, size, end int64) (records int, err error) {
	r, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd())) // f is write-only
	if err != nil {
		return 0, err
	}
	defer r.Close()
	tail, err := io.ReadAll(io.NewSectionReader(r, size, end-size))
	if err != nil {
		return 0, err
	}
	if whole := int64(bytes.LastIndexByte(tail, '\n') + 1); size+whole < end {
		if err := f.Truncate(size + whole); err != nil {
			return 0, err
		}
	}
	return bytes.Count(tail, []byte{'\n'}), nil
}

// drop counts lost bytes and removes a partly written record.
func (w *Writer) drop(data []byte, n int, size int64, err error) {
	whole := bytes.LastIndexByte(data[:n], '\n') + 1
	if torn := int64(n - whole); torn > 0 {
		if fi, serr := w.file.Stat(); serr == nil {
			w.file.Truncate(fi.Size() - torn) // else the next record would complete a broken line
		}
	}
	w.lose(err, size*int64(len(data)-whole)/int64(len(data))) // in proportion: exact enough for a count
}

// lose counts n lost bytes of output.
func (w *Writer) lose(err error, n int64) {
	if w.lost == 0 {
		w.reportLoss(err, 0)
	}
	w.lost += n
}

func (w *Writer) reportLoss(err error, lost int64) {
	if w.report != nil {
		w.report(err, lost)
	}
}

// Reopen starts a new file at the log's path, after the old one was renamed. When it returns the
// new file exists and nothing more goes to the old one. If it fails, writing continues in the old
// one.
func (w *Writer) Reopen() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed { // CRI: no log is created for a container that does not run
		return fmt.Errorf("reopen log %s: %w", w.path, os.ErrClosed)
	}
	return w.reopen()
}

func (w *Writer) reopen() error {
	f, err := create(w.path)
	if err != nil {
		return err
	}
	old := w.file
	w.file = f
	if w.alone && nameless(old) {
		w.rescue(old)
	}
	w.alone = counted(f, w.path)
	w.end(old)
	return nil
}

// Path returns the path of the log.
func (w *Writer) Path() string { return w.path }

// File returns the open file, for a successor to Resume.
func (w *Writer) File() *os.File {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.file
}

// Close closes the file. Nothing may be written afterwards.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.follow(false)
	}
	if w.lost > 0 {
		w.reportLoss(nil, w.lost)
		w.lost = 0
	}
	w.closed = true
	return w.file.Close()
}

// A log can lose its name while it is being written. It is removed to free its space. Or the
// kubelet reverts a rotation: it renames the log and requests a new one, and if that call fails it
// renames the old log back, over the new one if that exists by then. Whatever made the call fail,
// such as the end of the daemon that should have answered, the Writer may have got the request, and
// then writes to a file without a name.

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
	w.lose(err, max(over, 0))
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
