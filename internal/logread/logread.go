// Package logread reads the logs of containers, over rotations, and follows them.
//
// A log is a file in crilog's format. It is rotated while it is written, by the
// kubelet, by crisp agent, or by hand, on whichever runtime:
//
//	0.log                    is renamed to 0.log.20261122-070000; the runtime writes on
//	0.log                    is made by the runtime (ReopenContainerLog), written from now on
//	0.log.20261122-070000    becomes 0.log.20261122-070000.gz at the next rotation
//	0.log.20261122-070000.gz is removed when there are too many
//
// The reader holds the file that it reads, whatever becomes of its name:
//
//	          ┌──── more is there ────┐
//	          ▼                       │
//	held ─▶ read to its end ──────────┘
//	          │ there is a next file, and nobody writes to this one any more:
//	          │ read to its end once more, then
//	          ├──────▶ hold the next: the oldest rotated one that was not read, else 0.log
//	          │ there is none, and the container has ended:
//	          └──────▶ the end
//
// That the new file is there does not mean that the old one is complete: the runtime may be in
// the middle of a write. Whether a file is open for writing, the kernel tells when asked for a
// read lease of it (fcntl(2)).
//
// Rotated files are a part of the log as long as they are kept. The kubelet's reader knows only
// the file that is being written.
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

	"github.com/crisp-cri/crisp/internal/lease"
	"github.com/crisp-cri/crisp/internal/regular"
)

// Options say what of a log is read and where to it is written. What they have in
// common with v1.PodLogOptions means what it means there.
type Options struct {
	Stdout, Stderr io.Writer // nil: that stream is not asked for
	// Tail is how many lines are read, counted from the end; nil is all. A line is what
	// the container ended with a newline, in however many records, and only those of
	// the streams asked for count.
	Tail       *int64
	Since      time.Time // records before it are left out
	Limit      *int64    // bytes written at most, timestamps included; nil is no limit
	Timestamps bool      // before each line, RFC 3339 with nine digits
	// Running has the log followed until it reports false, or an error, and all that
	// was written until then is read. nil: what is there now is read.
	Running func(context.Context) (bool, error)
	// Damaged is told of each record, and each compressed file, that cannot be read and
	// is left out; may be nil.
	Damaged func(error)
}

// A Log is one that is being read.
type Log struct {
	path  string
	held  file            // what is read, or will be when the older ones are
	older []string        // the stamps of the rotated files before it, oldest first
	done  map[string]bool // the stamps of those and, if it has one, its own

	between func()                                 // of tests: called wherever a rotation may come in between
	writer  func(f *os.File) (has, known bool)     // lease.HasWriter, but in tests
	watches func(dir string) (w *watch, err error) // newWatch, but in tests
}

// Open opens the log of that path: the file itself may be away for a moment. An
// error of it is fs.ErrNotExist if there is none.
func Open(path string) (*Log, error) {
	return open(path, func() {})
}

func open(path string, between func()) (*Log, error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	l := &Log{path: path, between: between, writer: lease.HasWriter, watches: newWatch}
	for range 100 { // only a rotation just now is a reason to look again
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
			l.held, l.older = file{File: f}, names
		case err == nil:
			f.Close()
			continue
		case len(names) == 0:
			return nil, err
		default: // renamed, and the new one not made yet
			last := len(names) - 1
			if l.held, err = l.open(names[last]); errors.Is(err, fs.ErrNotExist) {
				continue
			} else if err != nil {
				return nil, err
			}
			if err := l.held.unpack(); err != nil {
				l.held.Close()
				return nil, err
			}
			l.older = names[:last]
		}
		l.done = setOf(names)
		return l, nil
	}
	return nil, fmt.Errorf("%s: is rotated all the time", path)
}

// Close lets go of the log's files.
func (l *Log) Close() error { return l.held.Close() }

// Copy writes the log, and returns when all is written that was asked for. It can be
// called once. The error is ctx's if that ended first.
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
	info, err := l.held.Stat()
	if err != nil {
		return err
	}
	s := &scan{f: l.held.File}
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
		return s.finish(p) // nobody has ended the last record
	}
	return nil
}

// openOlder opens all rotated files before any of them is read, or those that come
// last could be removed meanwhile.
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

// awaitWriter waits until a rotated file has no writer any more: it may have been renamed just
// now.
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

// copyTail writes what of the last lines lies in rotated files, and returns where in
// the held file, which has that size, they go on.
func (l *Log) copyTail(ctx context.Context, p *printer, older []file, size int64) (int64, error) {
	t := &tail{lines: *p.Tail, wanted: p.wanted()}
	at, found, err := t.find(l.held.File, size)
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
