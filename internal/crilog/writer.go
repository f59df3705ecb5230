package crilog

import (
	"bytes"
	"errors"
	"fmt"
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
	report func(err error, lost int64)

	mu   sync.Mutex
	file *os.File
	last time.Time // of the latest record
	lost int64     // bytes of output dropped since the last one that was written
	buf  []byte    // kept from one Write to the next if small
}

// keep is the largest buffer that a Writer holds on to: what a chatty container
// uses, a silent one must not pay for.
const keep = 4 << 10

// Open opens the log at path for appending and creates it, mode 0640, and its
// directory if they are not there. A max of 0 is MaxLine.
//
// Output that cannot be written is dropped, because a container must not wait for
// a full disk: report is called with the reason when the first byte is lost, and
// with a nil error and the number of bytes when writing works again.
func Open(path string, max int, report func(err error, lost int64)) (*Writer, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := create(path)
	if err != nil {
		return nil, err
	}
	return Resume(f, path, max, report), nil
}

// Resume is Open for a log that is open already; the Writer takes f over.
func Resume(f *os.File, path string, max int, report func(err error, lost int64)) *Writer {
	if max <= 0 {
		max = MaxLine
	}
	return &Writer{path: path, max: max, report: report, file: f}
}

// create opens a log to append to. A pod that may write to the log directory could put
// something else there: a link would lead to any file of the host, and a FIFO would
// hold the writer.
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
		err = fmt.Errorf("log %s is no regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Write appends the records of p with one write(2). It returns no error: see Open.
func (w *Writer) Write(stream string, p []byte) {
	if len(p) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	// The clock may be set back; a log may not go back (CRI's readers stop at
	// the first record past what they were asked for).
	if now := time.Now().UTC().Round(0); now.After(w.last) {
		w.last = now
	}
	data := Append(w.buf[:0], w.last, stream, p, w.max)
	if cap(data) <= keep {
		w.buf = data
	}
	n, err := w.file.Write(data)
	if err != nil {
		w.drop(data, n, int64(len(p)), err)
		return
	}
	if w.lost > 0 {
		w.tell(nil, w.lost)
		w.lost = 0
	}
}

// drop counts what was lost and takes back the record that was written in part.
func (w *Writer) drop(data []byte, n int, size int64, err error) {
	whole := bytes.LastIndexByte(data[:n], '\n') + 1
	if torn := int64(n - whole); torn > 0 {
		if fi, serr := w.file.Stat(); serr == nil {
			w.file.Truncate(fi.Size() - torn) // else the next record completes a broken line
		}
	}
	if w.lost == 0 {
		w.tell(err, 0)
	}
	w.lost += size * int64(len(data)-whole) / int64(len(data)) // in proportion: exact enough for a count
}

func (w *Writer) tell(err error, lost int64) {
	if w.report != nil {
		w.report(err, lost)
	}
}

// Reopen starts a new file at the log's path, after somebody has renamed the old
// one. When it returns the new file is there and nothing goes to the old one any
// more. If it fails, the old one is written on.
func (w *Writer) Reopen() error {
	f, err := create(w.path)
	if err != nil {
		return err
	}
	w.mu.Lock()
	old := w.file
	w.file = f
	w.mu.Unlock()
	return old.Close()
}

// Path is where the log is.
func (w *Writer) Path() string { return w.path }

// File is the open file, for a successor that Resumes it.
func (w *Writer) File() *os.File {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.file
}

// Close closes the file. Nothing may be written afterwards.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost > 0 {
		w.tell(nil, w.lost)
		w.lost = 0
	}
	return w.file.Close()
}
