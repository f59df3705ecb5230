package image

import (
	"context"
	"math"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/crisp-cri/crisp/image/progress"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/singleflight"
)

// flights are the pulls under way, by journey.key. Several callers may wait for the same one;
// it is cancelled when the last of them has left.
type flights struct {
	tracker progress.Tracker
	group   singleflight.Group[*flight]
	running sync.WaitGroup
	count   *atomic.Int64 // of flights
	idle    *time.Timer   // fires when there have been none for a while
}

// A flight is the pull that several callers wait for.
type flight struct {
	progress *progress.Pull
	img      Image
}

// A journey describes a flight and one of its callers.
type journey struct {
	key   string // identifies the flight
	image string // its name, to be shown
	pod   string // on whose behalf this caller waits, to be shown; "" = none
}

// start lets flights begin, until ctx ends.
func (fs *flights) start(ctx context.Context) {
	fs.group.Ctx = ctx
	count := new(atomic.Int64)
	fs.count = count
	// The runtime may keep a timer long after Stop, so this one must not refer to fs, which keeps all images.
	fs.idle = time.AfterFunc(math.MaxInt64, func() {
		if count.Load() == 0 {
			freeMemory()
		}
	})
	fs.group.Begin = func(f func()) bool {
		fs.count.Add(1)
		fs.running.Go(func() {
			defer fs.ended()
			f()
		})
		return true
	}
}

// idleTime is for how long a flight's memory is kept for the next one.
const idleTime = 5 * time.Second

// freeMemory returns memory to the kernel, which Go does only over minutes, and not at all for
// what no later collection finds.
var freeMemory = debug.FreeOSMemory

func (fs *flights) ended() {
	if fs.count.Add(-1) == 0 {
		fs.idle.Reset(idleTime)
	}
}

// join runs work, or waits for a flight with the same key.
func (fs *flights) join(ctx context.Context, to journey, work func(context.Context, *progress.Pull) (Image, error)) (Image, error) {
	share := func() *flight {
		p := fs.tracker.New(to.image)
		p.Join(to.pod) // here, as the work may run before Join returns
		return &flight{progress: p}
	}
	c, mine := fs.group.Join(ctx, to.key, share, func(ctx context.Context, f *flight) error {
		f.progress.Begin()
		err := fault.Protect(func() (err error) {
			f.img, err = work(ctx, f.progress)
			return err
		})
		f.progress.End(err)
		return err
	})
	if !mine {
		c.Shared.progress.Join(to.pod)
	}
	defer c.Shared.progress.Leave(to.pod)
	if err := c.Wait(ctx); err != nil {
		return Image{}, err
	}
	return c.Shared.img, nil
}

// wait returns when no flight is under way; no other may begin.
func (fs *flights) wait() {
	fs.running.Wait()
	fs.idle.Stop()
}
