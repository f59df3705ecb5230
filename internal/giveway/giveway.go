// Package giveway lets work that takes all CPUs for seconds, such as a pull, give way to calls that are over in
// milliseconds, such as the start of a pod: beside a pull these took three times as long.
//
// The work waits between its steps while calls are under way, and for a moment after the last of them, since another
// one follows most of them. In the long run it gets at least a fifth of the time, so that it comes to its end however
// many calls there are, and a call counts for a moment only: one that waits for a grace period or a plugin needs no CPU.
package giveway

import (
	"context"
	"sync"
	"time"
)

const (
	callMost  = 100 * time.Millisecond // a call counts for so long
	linger    = 3 * time.Millisecond   // the gate stays shut for so long after the last call
	shutMost  = 80 * time.Millisecond  // the work waits for so long at a time
	openShare = 4                      // and waits again for at most so many times what it ran since
)

// gate is what calls shut. They share this process's CPUs, so that it has one.
var gate crossing

// Call says that a call begins; the function it returns, that it has ended.
func Call() (done func()) { return gate.call() }

// Wait returns when no call is under way, when the caller has waited for long enough, or when ctx ends.
func Wait(ctx context.Context) { gate.wait(ctx) }

type crossing struct {
	mu    sync.Mutex
	calls int
	shut  chan struct{} // closed when the gate opens; nil: it is open
	owed  time.Duration // for how long it has been shut, less what was made up for while it was open
	since time.Time     // of what owed is
	over  bool          // nothing may wait until nothing is owed
	timer *time.Timer   // of the next look at the gate, nil: none
}

func (g *crossing) call() (done func()) {
	g.count(1)
	timer := time.AfterFunc(callMost, func() { g.count(-1) })
	return func() {
		if timer.Stop() {
			g.count(-1)
		}
	}
}

func (g *crossing) wait(ctx context.Context) {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut != nil {
		select {
		case <-shut:
		case <-ctx.Done():
		}
	}
}

func (g *crossing) count(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls += n
	g.settle(g.calls == 0)
}

// settle opens or shuts the gate, and looks at it again in time. last: the last call has just ended. The caller holds mu.
func (g *crossing) settle(last bool) {
	now := time.Now()
	if passed := min(max(now.Sub(g.since), 0), shutMost); g.shut != nil {
		g.owed += passed
	} else {
		g.owed = max(g.owed-passed*openShare, 0)
	}
	g.since = now
	g.over = g.owed >= shutMost || g.over && g.owed > 0
	again := g.owed/openShare + 1
	switch {
	case !g.over && (g.calls > 0 || last && g.shut != nil):
		if g.shut == nil {
			g.shut = make(chan struct{})
		}
		if again = shutMost - g.owed; last {
			again = min(again, linger)
		}
	case g.shut != nil:
		close(g.shut)
		g.shut = nil
	}
	switch {
	case g.shut == nil && !g.over:
	case g.timer != nil:
		g.timer.Reset(again)
	default:
		var look *time.Timer
		look = time.AfterFunc(again, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.timer == look {
				g.timer = nil
			}
			g.settle(false)
		})
		g.timer = look
	}
}
