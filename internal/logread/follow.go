package logread

import (
	"context"
	"path/filepath"
	"time"
)

const (
	// period is how often the container is asked about and the log looked at when
	// nothing tells of anything; poll, if inotify cannot be had.
	period = time.Second
	poll   = 200 * time.Millisecond
	// soon is the first of the pauses after which it is looked again when something is
	// about to happen. They double, up to a period.
	soon = 5 * time.Millisecond

	// For how long a file is held that may still be written, if it cannot be known
	// whether it is: since the next one is there; if somebody has it open who says
	// nothing; since the container has ended.
	settle   = time.Second
	patience = 10 * time.Second
	linger   = 2 * time.Second
)

// A follower is one run of follow.
type follower struct {
	*Log
	p *printer
	s *scan
	w *watch

	ended time.Time // when the container was found to have ended; zero: it has not
	grown time.Time // when the held file grew last
	seen  time.Time // when the next file was seen first; zero: there is none
	asked time.Time // when the container was asked about last
	pause time.Duration
}

// follow reads the held file from where s is, and the ones after it, until the
// container has ended.
func (l *Log) follow(ctx context.Context, p *printer, s *scan) error {
	w, err := l.watches(filepath.Dir(l.path))
	if err != nil {
		w = &watch{} // it goes on without
	}
	defer w.end()
	f := &follower{Log: l, p: p, s: s, w: w, pause: soon}
	f.watchHeld()
	for {
		over, err := f.step(ctx)
		if over || err != nil {
			return err
		}
	}
}

func (f *follower) watchHeld() {
	if f.w.hold(f.held.File) != nil {
		f.w.end()
	}
}

// step reads what there is, goes on to the next file when the held one is complete,
// or waits. It reports whether the log is at its end.
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
		// What was written before it was complete.
		err := f.read(ctx)
		if err == nil {
			err = f.s.finish(f.p)
		}
		if there && err == nil {
			f.hold(next)
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
		return false, err // what it wrote at last is read in the next step
	}
	f.wait(ctx, there)
	return false, ctx.Err()
}

// read writes all that there is.
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

// complete reports whether the held file will not be written any more.
func (f *follower) complete(there bool, next file) bool {
	if f.held.packed {
		return true
	}
	has, known := f.writer(f.held.File)
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
	// Somebody has it open. A runtime writes to the next one by now, unless it was
	// not told of the rotation.
	info, err := next.Stat()
	return err == nil && info.Size() > 0 && time.Since(f.seen) > patience && time.Since(f.grown) > patience
}

// hold goes on with the next file.
func (f *follower) hold(next file) {
	f.held.Close()
	f.held = next
	if next.stamp != "" {
		f.done[next.stamp] = true
	}
	f.s = &scan{f: next.File, buf: f.s.buf}
	f.seen, f.grown, f.pause = time.Time{}, time.Time{}, soon
	f.watchHeld()
}

// ask asks whether the container has ended, if that may be.
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

// wait waits until there may be something to do.
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
