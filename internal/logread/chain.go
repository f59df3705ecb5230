package logread

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/crisp-cri/crisp/internal/flock"
	"github.com/crisp-cri/crisp/internal/regular"
)

const (
	compressed = ".gz"
	stampForm  = "20060102-150405" // the kubelet's
	headSize   = 256               // bytes that identify a file
)

// A file is one of the files of a log.
type file struct {
	*os.File
	stamp  string // suffix of its name after the log's; "" if unknown, or for the current file
	packed bool   // it was compressed, so it is not written to
}

// rotated returns the stamps of the rotated files, oldest first.
func (l *Log) rotated() ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(l.path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var stamps []string
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), filepath.Base(l.path)+".")
		stamp := strings.TrimSuffix(rest, compressed)
		if _, err := time.Parse(stampForm, stamp); ok && err == nil {
			stamps = append(stamps, stamp)
		}
	}
	slices.Sort(stamps)
	return slices.Compact(stamps), nil
}

// named reports whether f is the file with the log's name.
func (l *Log) named(f *os.File) bool { return flock.IsAt(f, l.path) }

func isSame(f, g *os.File) bool {
	ours, err := f.Stat()
	theirs, otherErr := g.Stat()
	return err == nil && otherErr == nil && os.SameFile(ours, theirs)
}

// open opens a rotated file, which may be compressed.
func (l *Log) open(stamp string) (file, error) {
	name := l.path + "." + stamp
	f, err := regular.Open(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return file{f, stamp, false}, err
	}
	l.between()
	f, err = regular.Open(name + compressed) // it exists before the other is removed
	return file{f, stamp, true}, err
}

// unpack replaces a compressed file by an unnamed temporary file with its content, which can
// also be read backwards.
func (f *file) unpack() error {
	if !f.packed {
		return nil
	}
	z, err := gzip.NewReader(f.File)
	if err != nil {
		return &fs.PathError{Op: "unpack", Path: f.Name(), Err: err}
	}
	to, err := os.CreateTemp("", "crisp-log-")
	if err != nil {
		return err
	}
	_, err = io.Copy(to, z)
	if err = errors.Join(err, os.Remove(to.Name())); err != nil {
		to.Close()
		return &fs.PathError{Op: "unpack", Path: f.Name(), Err: err}
	}
	f.Close()
	f.File = to
	return nil
}

// isNow reports whether the rotated file of this stamp is f.
func (l *Log) isNow(f *os.File, stamp string) bool {
	name := l.path + "." + stamp
	if flock.IsAt(f, name) {
		return true
	}
	from, err := regular.Open(name + compressed)
	if err != nil {
		return false
	}
	defer from.Close()
	z, err := gzip.NewReader(from)
	if err != nil {
		return false
	}
	// Records begin with their time in nanoseconds, so no two files begin alike.
	var ours, theirs [headSize]byte
	n, _ := f.ReadAt(ours[:], 0)
	m, _ := io.ReadFull(z, theirs[:])
	return bytes.Equal(ours[:n], theirs[:m])
}

// younger returns the names that come after the open file, and records which of them is the open
// file's own. All files that appeared since the open file had the log's name are younger,
// whatever the clock says; one of them is the open file itself.
func (l *Log) younger(names []string) []string {
	fresh := slices.DeleteFunc(slices.Clone(names), func(s string) bool { return l.done[s] })
	if l.reading.stamp == "" {
		if i := slices.IndexFunc(fresh, func(s string) bool { return l.isNow(l.reading.File, s) }); i >= 0 {
			l.reading.stamp = fresh[i]
			l.done[fresh[i]] = true
			fresh = slices.Delete(fresh, i, i+1)
		}
	}
	return fresh
}

// next opens the file after the open one. there is false if the open file is the current one, or
// the new one does not exist yet.
func (f *follower) next() (next file, there bool, err error) {
	l := f.Log
	for {
		if l.named(l.reading.File) {
			if l.reading.stamp != "" { // the rotation was undone because the runtime did not reopen
				delete(l.done, l.reading.stamp)
				l.reading.stamp = ""
			}
			return file{}, false, nil
		}
		l.between()
		names, err := l.rotated()
		if err != nil {
			return file{}, false, err
		}
		fresh := l.younger(names)
		l.between()
		if len(fresh) > 0 {
			next, err = l.open(fresh[0])
		} else {
			next = file{}
			next.File, err = regular.Open(l.path)
		}
		gone := errors.Is(err, fs.ErrNotExist)
		if err != nil && !gone {
			return file{}, false, err
		}
		l.between()
		// A new name means that another rotation has interfered.
		again, err := l.rotated()
		if err == nil && !slices.ContainsFunc(again, func(s string) bool { return !slices.Contains(names, s) }) {
			switch {
			case !gone && isSame(next.File, l.reading.File): // the rotation was just undone
				next.Close()
				continue
			case !gone:
				if err := next.unpack(); err != nil {
					next.Close()
					f.p.damaged(err)
					f.done[next.stamp] = true
					continue
				}
				return next, true, nil
			case len(fresh) == 0:
				return file{}, false, nil
			}
			f.done[fresh[0]] = true // removed meanwhile, or a dangling link
			continue
		}
		if !gone {
			next.Close()
		}
		if err != nil {
			return file{}, false, err
		}
	}
}
