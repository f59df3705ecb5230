package image

import (
	"context"
	"sync"

	"github.com/crisp-cri/crisp/image/progress"
	"github.com/crisp-cri/crisp/internal/stage"
)

// A flight is work that several callers wait for. It has its own context, so that it survives
// the caller that began it, and is cancelled when the last caller has left.
type flight struct {
	done    chan struct{} // closed once img and err are set
	img     Image
	err     error
	cancel  context.CancelFunc
	waiters int // guarded by flights.mu

	stages   *stage.Log // nil if nobody records
	progress *progress.Pull
}

// flights are the pulls under way, by what is pulled.
type flights struct {
	tracker progress.Tracker
	mu      sync.Mutex
	m       map[string]*flight // guarded by mu
	running sync.WaitGroup
}

// A journey is what a flight is for.
type journey struct {
	key   string // what distinguishes it
	image string // its name, to be shown
	pod   string // on whose behalf this caller waits, to be shown; "" = nobody's
}

// join runs work, or waits for the same work that is under way.
func (fs *flights) join(ctx context.Context, to journey, work func(context.Context, *progress.Pull) (Image, error)) (Image, error) {
	key := to.key
	fs.mu.Lock()
	f := fs.m[key]
	if f == nil {
		own, log := stage.Fork(context.WithoutCancel(ctx))
		own, cancel := context.WithCancel(own)
		f = &flight{done: make(chan struct{}), cancel: cancel, stages: log, progress: fs.tracker.New(to.image)}
		if fs.m == nil {
			fs.m = make(map[string]*flight)
		}
		fs.m[key] = f
		fs.running.Go(func() {
			defer cancel()
			f.progress.Begin()
			f.img, f.err = work(own, f.progress)
			f.stages.Stop()
			f.progress.End(f.err)
			fs.forget(key, f)
			close(f.done)
		})
	}
	f.waiters++
	fs.mu.Unlock()
	f.progress.Join(to.pod)
	defer f.progress.Leave(to.pod)
	stage.Follow(ctx, f.stages)

	select {
	case <-f.done:
		return f.img, f.err
	case <-ctx.Done():
		fs.leave(key, f)
		return Image{}, ctx.Err()
	}
}

// leave takes a waiter off f. Work without waiters is cancelled, and a later caller does not
// join it.
func (fs *flights) leave(key string, f *flight) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.waiters--
	if f.waiters > 0 {
		return
	}
	f.cancel()
	if fs.m[key] == f {
		delete(fs.m, key)
	}
}

func (fs *flights) forget(key string, f *flight) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.m[key] == f {
		delete(fs.m, key)
	}
}

// stop cancels all work and waits for its end.
func (fs *flights) stop() {
	fs.mu.Lock()
	for _, f := range fs.m {
		f.cancel()
	}
	fs.mu.Unlock()
	fs.running.Wait()
}
