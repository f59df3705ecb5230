// Package logread reads and follows the logs of containers, across rotations.
//
// A log is a file in crilog's format. It is rotated while the runtime writes to it, by the
// executor (crilog.Limit), by the kubelet, by crisp agent or by hand:
//
//	0.log                    is renamed to 0.log.20261122-070000; the runtime still writes to it
//	0.log                    is created by the runtime (ReopenContainerLog), which writes there from now on
//	0.log.20261122-070000    becomes 0.log.20261122-070000.gz at the next rotation
//	0.log.20261122-070000.gz is removed when there are too many
//
// The reader keeps the file that it reads open, whatever happens to its name:
//
//	          ┌──── more is there ────┐
//	          ▼                       │
//	open ─▶ read to its end ──────────┘
//	          │ there is a next file, and no process writes to this one:
//	          │ read to its end once more, then
//	          ├──────▶ open the next: the oldest rotated one that was not read, else 0.log
//	          │ this is the last one, and the container has ended:
//	          └──────▶ the end
//
// The old file may be incomplete even if the new one exists: the runtime may be in the middle of
// a write. A read lease (fcntl(2)) shows whether a file is open for writing.
//
// Rotated files are part of the log as long as they exist. The kubelet's reader knows only the
// current file.
package logread

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/internal/filelease"
	"github.com/crisp-cri/crisp/internal/regular"
)

// Options say what to read of a log and where to write it. Fields that v1.PodLogOptions also has
// have the same meaning.
type Options struct {
	Stdout, Stderr io.Writer // nil leaves out that stream
	// Tail is how many lines to read from the end; nil means all. A line ends where the
	// container wrote a newline and may be several records. Only lines of the requested streams
	// count.
	Tail       *int64
	Since      time.Time // earlier records are left out
	Limit      *int64    // bytes to write at most, including timestamps; nil is no limit
	Timestamps bool      // before each line, in RFC 3339 with nine digits
	// Running reports whether the container is running. With it the log is followed until it
	// returns false or an error and everything written before is read; if it is nil only what
	// exists now is read.
	Running func(context.Context) (bool, error)
	// Damaged is called for each record or compressed file that is skipped because it cannot be
	// read. It may be nil.
	Damaged func(error)
}

// A Log is a log being read.
type Log struct {
	path    string
	reading file            // the open one, read after the older ones
	older   []string        // stamps of the rotated files before it, oldest first
	done    map[string]bool // stamps of these and of reading, if it has one

	between func()                                 // tests call it wherever a rotation can interfere
	writer  func(f *os.File) (has, known bool)     // filelease.HasWriter; tests replace it
	watches func(dir string) (w *watch, err error) // newWatch; tests replace it
}

// Open opens the log at path. The file itself may be missing for a moment during a rotation. The
// error is fs.ErrNotExist if there is no log.
func Open(path string) (*Log, error) {
	return open(path, func() {})
}

func open(path string, between func()) (*Log, error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	l := &Log{path: path, done: map[string]bool{}, between: between, writer: filelease.HasWriter, watches: newWatch}
	for range 100 { // only a concurrent rotation is a reason to try again
		f, err := regular.Open(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		l.between()
		names, listErr := l.rotated()
		if listErr != nil {
			return nil, listErr
		}
		l.between()
		switch {
		case err == nil && l.named(f):
			l.reading, l.older = file{File: f}, names
		case err == nil:
			f.Close()
			continue
		case len(names) == 0:
			return nil, err
		default: // renamed, and the new file does not exist yet
			last := len(names) - 1
			if l.reading, err = l.open(names[last]); errors.Is(err, fs.ErrNotExist) {
				continue
			} else if err != nil {
				return nil, err
			}
			if err := l.reading.unpack(); err != nil {
				l.reading.Close()
				return nil, err
			}
			l.older = names[:last]
		}
		for _, name := range names {
			l.done[name] = true
		}
		return l, nil
	}
	return nil, fmt.Errorf("%s: is rotated all the time", path)
}

// Close closes the log's files.
func (l *Log) Close() error { return l.reading.Close() }

// Copy writes what o requests. It can be called once. If ctx ends first, the error is ctx's.
func (l *Log) Copy(ctx context.Context, o Options) error {
	p := &printer{Options: o, left: math.MaxInt64}
	if o.Limit != nil {
		p.left = *o.Limit
	}
	err := l.copy(ctx, p)
	if err == nil {
		err = p.flush()
	}
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

func (l *Log) copy(ctx context.Context, p *printer) error {
	older, err := l.openOlder()
	defer func() {
		for _, f := range older {
			f.Close()
		}
	}()
	if err != nil {
		return err
	}
	if n := len(older); n > 0 {
		if err := l.awaitWriter(ctx, older[n-1]); err != nil {
			return err
		}
	}
	info, err := l.reading.Stat()
	if err != nil {
		return err
	}
	s := &scan{f: l.reading.File}
	if p.Tail == nil {
		for i := range older {
			if err := copyOlder(ctx, p, &older[i]); err != nil {
				return err
			}
		}
	} else if s.at, err = l.copyTail(ctx, p, older, info.Size()); err != nil {
		return err
	}
	if p.Running != nil {
		return l.follow(ctx, p, s)
	}
	if _, err := s.read(ctx, p, info.Size()); err != nil {
		return err
	}
	if s.at < info.Size() {
		return s.finish(p) // the last record is not terminated
	}
	return nil
}

// openOlder opens all rotated files before the first is read: the later ones could be removed
// meanwhile.
func (l *Log) openOlder() (older []file, err error) {
	for _, stamp := range l.older {
		f, err := l.open(stamp)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed just now
		}
		if err != nil {
			return older, err
		}
		older = append(older, f)
	}
	return older, nil
}

// awaitWriter waits until a rotated file has no writer. It may have just been renamed.
func (l *Log) awaitWriter(ctx context.Context, f file) error {
	for begun := time.Now(); !f.packed && time.Since(begun) < linger; {
		l.between()
		has, known := l.writer(f.File)
		if known && !has {
			break
		}
		if info, err := f.Stat(); !known && err == nil && time.Since(info.ModTime()) > settle {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(soon):
		}
	}
	return nil
}

// copyOlder writes a whole rotated file.
func copyOlder(ctx context.Context, p *printer, f *file) error {
	old, err := p.tooOld(f.File)
	if err != nil || old {
		return err
	}
	if err := f.unpack(); err != nil {
		p.damaged(err)
		return nil
	}
	defer f.Close()
	return (&scan{f: f.File}).all(ctx, p)
}

// copyTail prints those of the last lines that are in rotated files, and returns the offset of the
// first one in the open file. It examines size bytes of that.
func (l *Log) copyTail(ctx context.Context, p *printer, older []file, size int64) (int64, error) {
	t := &tail{lines: *p.Tail, wanted: p.wanted()}
	at, found, err := t.find(l.reading.File, size)
	if err != nil {
		return 0, err
	}
	var scans []*scan
	for i := len(older) - 1; i >= 0 && !found; i-- {
		f := &older[i]
		if old, err := p.tooOld(f.File); old || err != nil {
			if err != nil {
				return 0, err
			}
			break
		}
		if err := f.unpack(); err != nil {
			p.damaged(err)
			continue
		}
		info, err := f.Stat()
		if err != nil {
			return 0, err
		}
		s := &scan{f: f.File}
		if s.at, found, err = t.find(f.File, info.Size()); err != nil {
			return 0, err
		}
		scans = append(scans, s)
	}
	for _, s := range slices.Backward(scans) {
		if err := s.all(ctx, p); err != nil {
			return 0, err
		}
	}
	return at, nil
}
