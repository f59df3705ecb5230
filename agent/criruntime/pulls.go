package criruntime

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/pulls"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
)

// Pulls limits the pulls of images. The zero value allows 3 at a time, 5 a second, and 10 at
// once after a pause.
type Pulls struct {
	Parallel int     // at a time; less than 0 is unlimited
	PerSec   float64 // less than 0, or 0 when rounded to a float32, is unlimited
	Burst    int
}

// A queue starts pulls in the order of their arrival.
type queue struct {
	slots chan struct{} // nil is unlimited
	rate  flowcontrol.RateLimiter
}

func newQueue(p Pulls) *queue {
	if p.Parallel == 0 {
		p.Parallel = 3
	}
	if p.PerSec == 0 {
		p.PerSec, p.Burst = 5, 10
	}
	q := &queue{rate: flowcontrol.NewFakeAlwaysRateLimiter()}
	if perSec := float32(p.PerSec); perSec > 0 { // at any other rate a bucket never fills
		q.rate = flowcontrol.NewTokenBucketRateLimiter(perSec, max(p.Burst, 1))
	}
	if p.Parallel > 0 {
		q.slots = make(chan struct{}, p.Parallel)
	}
	return q
}

// wait returns when a pull may begin. done is to be called when it has ended, or is stuck: three
// registries that hang would hold up all others. It may be called again.
func (q *queue) wait(ctx context.Context) (done func(), err error) {
	done = func() {}
	if q.slots != nil {
		select {
		case q.slots <- struct{}{}:
			done = sync.OnceFunc(func() { <-q.slots })
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err := q.rate.Wait(ctx); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// A PullWatcher reports the progress of pulls.
type PullWatcher interface {
	// Follow calls report now and then, until ctx ends, with the progress of the pull of image
	// for a pod (namespace/name). It returns earlier if the progress cannot be known.
	Follow(ctx context.Context, image, pod string, report func(pulls.Pull))
}

// stuckAfter is how long nothing of an image may come before the next pull takes its turn.
const stuckAfter = 10 * time.Second

// follow records an event of the container when a quarter, half and three quarters of its
// image have come, until stop is called. It calls stuck when nothing has come for stuckAfter, and
// none of what has come waits for the disk.
func (p *puller) follow(ctx context.Context, pod *v1.Pod, c *v1.Container, image string, stuck func()) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		done, last, moved := 0, int64(0), time.Now()
		p.o.Progress.Follow(ctx, image, podsync.KeyOf(pod).String(), func(far pulls.Pull) {
			unpacking := slices.ContainsFunc(far.Layers, func(l pulls.Layer) bool { return l.State == pulls.Unpacking })
			if f, _ := far.Fraction(); far.Bytes != last || unpacking || f == 1 {
				last, moved = far.Bytes, time.Now()
			} else if time.Since(moved) >= stuckAfter {
				stuck()
			}
			if q := quarters(far); q > done {
				done = q
				p.events.record(pod, c.Name, "", v1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q: %s of %s have come (%s)", c.Image, pulls.Size(far.Bytes), pulls.Size(far.Total), far))
			}
		})
	}()
	return func() {
		cancel()
		<-ended
	}
}

// quarters returns how many quarters of an image have arrived; 0 for all of it, for which the
// end of the pull records an event.
func quarters(p pulls.Pull) int {
	f, ok := p.Fraction()
	if !ok || f == 1 {
		return 0
	}
	return int(4 * f)
}
