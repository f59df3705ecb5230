// Package periodic has the loop of what is done again and again.
package periodic

import (
	"context"
	"time"
)

// Run calls f each time a period has passed, until ctx ends. What takes longer than
// a period is not caught up with.
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
