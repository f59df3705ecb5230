package criruntime

import (
	"context"
	"sync"
	"time"
)

// Pulls limits how images are pulled. The zero value is 3 at a time, 5 a second,
// and 10 at once after a pause.
type Pulls struct {
	Parallel int // at a time; less than 0 is without limit
	PerSec   float64
	Burst    int
}

// A queue lets pulls begin, the first that came first.
type queue struct {
	slots chan struct{} // nil: without limit
	rate  float64
	burst float64

	mu     sync.Mutex
	tokens float64   // guarded by mu
	since  time.Time // when tokens was right; guarded by mu
}

func newQueue(p Pulls) *queue {
	if p.Parallel == 0 {
		p.Parallel = 3
	}
	if p.PerSec == 0 {
		p.PerSec, p.Burst = 5, 10
	}
	q := &queue{rate: p.PerSec, burst: float64(max(p.Burst, 1)), since: time.Now()}
	q.tokens = q.burst
	if p.Parallel > 0 {
		q.slots = make(chan struct{}, p.Parallel)
	}
	return q
}

// wait returns when a pull may begin. done is to be called when it has ended.
func (q *queue) wait(ctx context.Context) (done func(), err error) {
	done = func() {}
	if q.slots != nil {
		select {
		case q.slots <- struct{}{}:
			done = func() { <-q.slots }
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	select {
	case <-time.After(q.take()):
		return done, nil
	case <-ctx.Done():
		done()
		return nil, ctx.Err()
	}
}

// take takes a token and returns how long it is until that is there.
func (q *queue) take() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	q.tokens = min(q.burst, q.tokens+now.Sub(q.since).Seconds()*q.rate)
	q.since = now
	q.tokens--
	if q.tokens >= 0 {
		return 0
	}
	return time.Duration(-q.tokens / q.rate * float64(time.Second))
}
