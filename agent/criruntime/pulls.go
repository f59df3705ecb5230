package criruntime

import (
	"context"
	"sync"

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
