package logread

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/periodic"
)

const (
	// period is how often to check the log and the container when no event arrives; poll is the
	// same without inotify.
	period = time.Second
	poll   = 200 * time.Millisecond
	// soon is the first pause when something is about to happen. Pauses double up to a period.
	soon = 5 * time.Millisecond

	// How long a file that may still be written to stays open: settle after the next one
	// appeared, if a writer cannot be detected; patience, if a writer has it open but does not
	// write; linger after the container has ended.
	settle   = time.Second
	patience = 10 * time.Second
	linger   = 2 * time.Second
)

// A follower is the state of one call of follow.
type follower struct {
	*Log
	p *printer
	s *scan
	w *watch

	ended time.Time // when the container was found to have ended; zero if it has not
	grown time.Time // when the open file last grew
	seen  time.Time // when the next file was first seen; zero without one
	asked time.Time // when Running was last called
	pause time.Duration
}

// follow keeps reading the open file and then the later ones, until the container has ended.
func (l *Log) follow(ctx context.Context, p *printer, s *scan) error {
	w, err := l.watches(filepath.Dir(l.path))
	if err != nil {
		w = &watch{} // without inotify, the follower polls
	}
	defer w.end()
	f := &follower{Log: l, p: p, s: s, w: w, pause: soon}
	f.watchFile()
	for {
		over, err := f.step(ctx)
		if over || err != nil {
			return err
		}
	}
}

func (f *follower) watchFile() {
	if f.w.follow(f.reading.File) != nil {
		f.w.end()
	}
}

// step reads what is available. Then it moves on to the next file if the open one is complete,
// else waits. It reports whether the end of the log is reached.
func (f *follower) step(ctx context.Context) (over bool, err error) {
	f.between()
	if err := f.read(ctx); err != nil {
		return false, err
	}
	next, there, err := f.next()
	if err != nil {
		return false, err
	}
	if there && f.seen.IsZero() {
		f.seen = time.Now()
	}
	if (there || !f.ended.IsZero()) && f.complete(there, next) {
		f.between()
		// More may have been written before the file was complete.
		err := f.read(ctx)
		if err == nil {
			err = f.s.finish(f.p)
		}
		if there && err == nil {
			f.advance(next)
			return false, nil
		}
		if there {
			next.Close()
		}
		return err == nil, err
	}
	if there {
		next.Close()
	}
	if ended, err := f.ask(ctx); ended || err != nil {
		return false, err // the next step reads its last output
	}
	f.wait(ctx, there)
	return false, ctx.Err()
}

// read prints everything in the open file.
func (f *follower) read(ctx context.Context) error {
	grew, err := f.s.read(ctx, f.p, -1)
	if grew {
		f.grown = time.Now()
	}
	if err != nil {
		return err
	}
	return f.p.flush()
}

// complete reports whether the open file will not be written to any more.
func (f *follower) complete(there bool, next file) bool {
	if f.reading.packed {
		return true
	}
	has, known := f.writer(f.reading.File)
	switch {
	case known && !has:
		return true
	case !f.ended.IsZero() && time.Since(f.ended) > linger:
		return true
	case !there:
		return false
	case !known:
		return time.Since(f.seen) > settle
	}
	// A writer has it open. By now a runtime should write to the next file, unless it was not asked to
	// reopen the log.
	info, err := next.Stat()
	return err == nil && info.Size() > 0 && time.Since(f.seen) > patience && time.Since(f.grown) > patience
}

// advance moves on to the next file.
func (f *follower) advance(next file) {
	f.reading.Close()
	f.reading = next
	if next.stamp != "" {
		f.done[next.stamp] = true
	}
	f.s = &scan{f: next.File, buf: f.s.buf}
	f.seen, f.grown, f.pause = time.Time{}, time.Time{}, soon
	f.watchFile()
}

// ask asks whether the container has ended, unless it did so just before.
func (f *follower) ask(ctx context.Context) (ended bool, err error) {
	after := period
	if f.w.close {
		after = f.pause
	}
	if !f.ended.IsZero() || time.Since(f.asked) < after {
		return false, nil
	}
	running, err := f.p.Running(ctx)
	if err != nil || ctx.Err() != nil {
		return false, err
	}
	f.asked = time.Now()
	if !running {
		f.ended = f.asked
	}
	return !running, nil
}

// wait waits until there may be more to do.
func (f *follower) wait(ctx context.Context, there bool) {
	d := period
	if there || f.w.close || !f.ended.IsZero() {
		d = f.pause
		f.pause = min(2*f.pause, period)
	}
	if f.w.f == nil {
		d = min(d, poll)
	}
	f.w.wait(ctx, d)
}

// A watch wakes the reader when there may be something to read. It uses inotify(7) directly: the
// package fsnotify does not report that a file was closed, which shows the end of a container at
// once, and it cannot watch a file whose name changes.
type watch struct {
	fd    int
	f     *os.File // of fd, in Go's poller; nil without inotify
	file  int      // watch descriptor of the open file
	close bool     // a writer has closed the open file
	buf   [4096]byte
}

// newWatch returns a watch for files that appear in dir. It fails if the user has no inotify
// instances or watches left (fs.inotify.max_user_*).
func newWatch(dir string) (*watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	w := &watch{fd: fd, f: os.NewFile(uintptr(fd), "inotify"), file: -1}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_ONLYDIR); err != nil {
		w.f.Close()
		return nil, os.NewSyscallError("inotify_add_watch", err)
	}
	return w, nil
}

// follow watches f instead of the previous file.
func (w *watch) follow(f *os.File) error {
	if w.f == nil {
		return nil
	}
	if w.file >= 0 {
		// The watch may have ended with the file.
		_, _ = unix.InotifyRmWatch(w.fd, uint32(w.file))
	}
	w.close = false
	var err error
	if w.file, err = unix.InotifyAddWatch(w.fd, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.IN_MODIFY|unix.IN_CLOSE_WRITE); err != nil {
		return os.NewSyscallError("inotify_add_watch", err)
	}
	return nil
}

// end closes inotify. From then on the watch only waits.
func (w *watch) end() {
	if w.f != nil {
		w.f.Close()
		w.f = nil
	}
}

// wait returns when something has happened, after d, or when ctx ends.
func (w *watch) wait(ctx context.Context, d time.Duration) {
	if w.f == nil {
		periodic.Pause(ctx, d)
		return
	}
	// After an error the caller polls.
	if w.f.SetReadDeadline(time.Now().Add(d)) != nil {
		w.end()
		return
	}
	f := w.f
	stop := context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	n, err := f.Read(w.buf[:])
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		w.end()
	}
	for events := w.buf[:max(n, 0)]; len(events) >= unix.SizeofInotifyEvent; {
		wd := int32(binary.NativeEndian.Uint32(events))
		mask := binary.NativeEndian.Uint32(events[4:])
		name := binary.NativeEndian.Uint32(events[12:])
		if int(wd) == w.file && mask&unix.IN_CLOSE_WRITE != 0 {
			w.close = true
		}
		events = events[unix.SizeofInotifyEvent+name:]
	}
}
