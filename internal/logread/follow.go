package logread

import (
	"context"
	"path/filepath"
	"time"
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
	seen  time.Time // when the next file was first seen; zero if there is none
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
	// A writer has it open. By now a runtime should write to the next file, unless nobody asked
	// it to reopen the log.
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
