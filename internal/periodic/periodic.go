// Package periodic has the loop for work that is repeated.
package periodic

import (
	"context"
	"time"
)

// Run calls f each time a period has passed, until ctx ends. Periods that pass while f runs are
// not made up for.
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
