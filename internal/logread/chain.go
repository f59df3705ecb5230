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

	"github.com/crisp-cri/crisp/internal/regular"
)

const (
	compressed = ".gz"
	stampForm  = "20060102-150405" // the kubelet's
	headSize   = 256               // bytes by which a compressed file is recognised
)

// A file is one of a log's.
type file struct {
	*os.File
	stamp  string // what its name has after the log's; "" if that is not known or it is the one that is written
	packed bool   // it was compressed: nobody writes to it
}

func setOf(names []string) map[string]bool {
	set := map[string]bool{}
	for _, name := range names {
		set[name] = true
	}
	return set
}

// rotated returns the stamps of the rotated files, the oldest first.
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

// named reports whether f is what the log's name stands for.
func (l *Log) named(f *os.File) bool { return isAt(f, l.path) }

func isAt(f *os.File, path string) bool {
	ours, err := f.Stat()
	theirs, otherErr := os.Stat(path)
	return err == nil && otherErr == nil && os.SameFile(ours, theirs)
}

func isSame(f, g *os.File) bool {
	ours, err := f.Stat()
	theirs, otherErr := g.Stat()
	return err == nil && otherErr == nil && os.SameFile(ours, theirs)
}

// open opens a rotated file, which may have to be unpacked.
func (l *Log) open(stamp string) (file, error) {
	name := l.path + "." + stamp
	f, err := regular.Open(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return file{f, stamp, false}, err
	}
	l.between()
	f, err = regular.Open(name + compressed) // which is there before the other goes
	return file{f, stamp, true}, err
}

// unpack writes what is compressed to a file that has no name, where it can be read
// from its end as well, and holds that instead.
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

// isNow reports whether a rotated file is what f was opened as.
func (l *Log) isNow(f *os.File, stamp string) bool {
	name := l.path + "." + stamp
	if isAt(f, name) {
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
	// Records begin with their time to the nanosecond: no two files begin alike.
	var ours, theirs [headSize]byte
	n, _ := f.ReadAt(ours[:], 0)
	m, _ := io.ReadFull(z, theirs[:])
	return bytes.Equal(ours[:n], theirs[:m])
}

// next opens the file that comes after the held one. There is none, and no error, if
// that is the one that is written, or the new one is not there yet.
func (f *follower) next() (next file, there bool, err error) {
	l := f.Log
	for {
		if l.named(l.held.File) {
			if l.held.stamp != "" { // the runtime did not follow the rotation, which was taken back
				delete(l.done, l.held.stamp)
				l.held.stamp = ""
			}
			return file{}, false, nil
		}
		l.between()
		names, err := l.rotated()
		if err != nil {
			return file{}, false, err
		}
		// All that has come since the held file had the log's name is younger, whatever
		// the clock says; one of them is the held file itself.
		fresh := slices.DeleteFunc(slices.Clone(names), func(s string) bool { return l.done[s] })
		if l.held.stamp == "" {
			if i := slices.IndexFunc(fresh, func(s string) bool { return l.isNow(l.held.File, s) }); i >= 0 {
				l.held.stamp = fresh[i]
				l.done[fresh[i]] = true
				fresh = slices.Delete(fresh, i, i+1)
			}
		}
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
		// Another name is another rotation, which came in between.
		again, err := l.rotated()
		if err == nil && !slices.ContainsFunc(again, func(s string) bool { return !slices.Contains(names, s) }) {
			switch {
			case !gone && isSame(next.File, l.held.File): // it has just got its name back
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
			f.done[fresh[0]] = true // removed meanwhile, or a link to nothing
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
