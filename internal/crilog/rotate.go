package crilog

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
)

// A Limit bounds a log: each of its files has at most Size bytes, unless a single record has more,
// and there are at most Files of them, no fewer than two. They never have more than Size times Files
// bytes together. Files that others have rotated or compressed as the kubelet does count too. The zero
// value is no limit.
type Limit struct {
	Size  int64
	Files int
}

// The annotations of a container by which a client of CRI gives its log a Limit: Size, 4 KiB to 1 TiB, and
// Files, up to 1000, as decimal numbers. Without the latter there are five files, as with the kubelet.
// Smaller files would be rotated so often that a write takes long, and nothing can replace an executor
// meanwhile.
const (
	AnnotationSize  = "io.crisp.log.max-size"
	AnnotationFiles = "io.crisp.log.max-files"

	minSize  = 4 << 10
	maxSize  = 1 << 40
	maxFiles = 1000
)

// Annotations returns the annotations of l; other numbers become the nearest ones that may be there.
func (l Limit) Annotations() map[string]string {
	if l.Size == 0 {
		return nil
	}
	return map[string]string{AnnotationSize: fmt.Sprint(min(max(l.Size, minSize), maxSize)), AnnotationFiles: fmt.Sprint(min(l.Files, maxFiles))}
}

// LimitOf returns the Limit in a container's annotations.
func LimitOf(annotations map[string]string) (l Limit, err error) {
	number := func(key string, missing, from, to int64) (n int64) {
		text, ok := annotations[key]
		if !ok {
			return missing
		}
		if n, _ = strconv.ParseInt(text, 10, 64); n < from || n > to {
			err = fault.Invalid.Errorf("annotation %s: %.40q is not a number from %d to %d", key, text, from, to)
		}
		return n
	}
	l.Size = number(AnnotationSize, 0, minSize, maxSize)
	if files := number(AnnotationFiles, 5, 2, maxFiles); l.Size > 0 {
		l.Files = int(files)
	}
	return l, err
}

// room returns how much may be appended to a file.
func (l Limit) room(size int64) int64 {
	if l.Size == 0 {
		return math.MaxInt64
	}
	return l.Size - size
}

// The name of a rotated file ends in its time, as with the kubelet: 0.log.20261122-070000. Here that
// has microseconds, as a log may be rotated often in a second.
const (
	seconds      = "20060102-150405"
	microseconds = seconds + ".000000"
)

// rotate starts a new file, and keeps the current one, of that size, as the youngest of the rotated
// files. If another process has just renamed it to rotate the log, it stays as it is. After an error
// the current file is the same as before.
func (w *Writer) rotate(size int64) error {
	old, sizes, err := w.limit.Rotated(w.path)
	if err != nil {
		return err
	}
	to := w.path + "." + StampAfter(old)
	for _, n := range sizes {
		size += n
	}
	for ; len(old) > 0 && (len(old) > w.limit.Files-2 || size > w.limit.Size*int64(w.limit.Files-1)); old = old[1:] {
		for _, form := range []string{".tmp", ".gz", ""} { // a copy is renamed before its original is removed
			if err := os.Remove(w.path + "." + old[0] + form); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		size -= sizes[old[0]]
	}
	renamed := false
	if at, err := os.Lstat(w.path); err == nil && isFile(at, w.file) {
		err := os.Rename(w.path, to)
		if renamed = err == nil; !renamed && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := w.reopen(); err != nil {
		if renamed {
			err = errors.Join(err, os.Rename(to, w.path))
		}
		return err
	}
	w.last = w.last.Add(1) // no two files begin alike: readers rely on it
	return nil
}

// Rotated returns the ends of the names of a log's rotated files, oldest first, and the size of each,
// with that of its compressed copy. A copy that is being made counts as if it became as large as any
// file.
func (l Limit) Rotated(path string) (stamps []string, sizes map[string]int64, err error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	sizes = map[string]int64{}
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), filepath.Base(path)+".")
		stamp, unfinished := strings.CutSuffix(rest, ".tmp")
		stamp = strings.TrimSuffix(stamp, ".gz")
		if _, err := time.Parse(seconds, stamp); !ok || err != nil {
			continue
		}
		size := l.Size
		if info, err := e.Info(); err == nil && !unfinished {
			size = info.Size()
		}
		sizes[stamp] += size
	}
	return slices.Sorted(maps.Keys(sizes)), sizes, err
}

// StampAfter returns the time for the name of a file that is rotated now. It is after those of the
// others, even if the clock was set back: files are read and removed in the order of their names.
func StampAfter(old []string) string {
	now := time.Now().Format(microseconds)
	if len(old) > 0 && old[len(old)-1] >= now {
		if last, err := time.Parse(seconds, old[len(old)-1]); err == nil {
			return last.Add(time.Microsecond).Format(microseconds)
		}
	}
	return now
}
