package giveway

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// waits returns how long work waits at g.
func waits(ctx context.Context, g *crossing) time.Duration {
	begun := time.Now()
	g.wait(ctx)
	return time.Since(begun)
}

// Work waits for the calls, and for as long after them as another one may take to come; but not for one that hangs.
func TestWorkWaitsForCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g crossing
		if got := waits(t.Context(), &g); got != 0 {
			t.Errorf("without a call work waited for %v", got)
		}
		done := g.call()
		other := g.call()
		time.AfterFunc(10*time.Millisecond, done)
		time.AfterFunc(20*time.Millisecond, other)
		if got, want := waits(t.Context(), &g), 20*time.Millisecond+linger; got != want {
			t.Errorf("work waited for %v, want %v", got, want)
		}
		time.Sleep(time.Second)

		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		done = g.call()
		if got := waits(ctx, &g); got != time.Millisecond {
			t.Errorf("work whose context ends waited for %v", got)
		}
		time.Sleep(callMost)
		if got := waits(t.Context(), &g); got != 0 {
			t.Errorf("beside a call that hangs work waited for %v", got)
		}
		done()
		time.Sleep(time.Second)
		done = g.call()
		done()
		if got := waits(t.Context(), &g); got != linger {
			t.Errorf("after it work waited for %v, want %v", got, linger)
		}
	})
}

// However many calls there are, and however they come, work gets a fifth of the time.
func TestWorkIsNotStarved(t *testing.T) {
	for _, c := range []struct {
		workers   int
		call, gap time.Duration
	}{{1, 20, 0}, {1, 20, 1}, {1, 20, 5}, {10, 30, 1}, {3, 5000, 0}, {1, 1, 4}} {
		synctest.Test(t, func(t *testing.T) {
			var g crossing
			ctx, cancel := context.WithCancel(t.Context())
			for range c.workers {
				go func() {
					for ctx.Err() == nil {
						done := g.call()
						time.Sleep(c.call * time.Millisecond)
						done()
						time.Sleep(c.gap * time.Millisecond)
					}
				}()
			}
			const all = 3 * time.Second
			var worked time.Duration
			for begun := time.Now(); time.Since(begun) < all; worked += time.Millisecond / 4 {
				g.wait(ctx)
				time.Sleep(time.Millisecond / 4)
			}
			t.Logf("%d workers, calls of %v ms, gaps of %v: worked %v of %v", c.workers, int(c.call), int(c.gap), worked, all)
			if worked < all/5-shutMost {
				t.Errorf("%d workers, calls of %d ms, gaps of %d: work got %v of %v", c.workers, c.call, c.gap, worked, all)
			}
			cancel()
			synctest.Wait()
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if g.calls != 0 || g.shut != nil {
				t.Errorf("in the end %d calls are under way", g.calls)
			}
		})
	}
}
