// Package periodic has the loop for periodic work, and the pause between two attempts.
package periodic

import (
	"context"
	"time"
)

// Run calls f once per period, until ctx ends. It skips periods that pass while f runs.
func Run(ctx context.Context, period time.Duration, f func(context.Context)) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f(ctx)
		}
	}
}

// Until returns how long a timer may run that is to fire at the time t by the clock, a minute at
// most: timers do not count while the machine sleeps, and do not see the clock being set forward.
// Who is woken looks at the clock again.
func Until(t time.Time) time.Duration { return min(max(time.Until(t), 0), time.Minute) }

// Past reports whether the time t has passed by either clock: the monotonic one, which stops while
// the machine sleeps, and that of the time of day, which may be set back. t is derived from
// time.Now, so that it has both.
func Past(t time.Time) bool {
	return time.Until(t) <= 0 || time.Until(t.Round(0)) <= 0
}

// Pause returns after d, or when ctx ends. It reports whether all of d has passed.
func Pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
