package registry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.podman.io/image/v5/docker"
)

// An exchange with a slow registry has several requests, each with its own timeout. An exchange
// with a registry that asks for endless waits, or whose response never ends, is bounded too.
func TestWatch(t *testing.T) {
	const limit = 40 * time.Second
	for name, c := range map[string]struct {
		answer, rest time.Duration // time until each response, and from that to the next request
		requests     int
		want         error
	}{
		"each in its time":     {30 * time.Second, 0, 4, nil},
		"one that is late":     {41 * time.Second, 0, 1, errNoAnswer},
		"too many":             {30 * time.Second, 0, 9, errNoAnswer},
		"one that has us wait": {time.Second, 15 * time.Second, 9, docker.ErrTooManyRequests},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			w := newWatch(limit, cancel, errNoAnswer)
			defer w.stop()
			for range c.requests {
				w.request()
				time.Sleep(c.answer)
				w.answer()
				time.Sleep(c.rest)
			}
			if got := context.Cause(ctx); !errors.Is(got, c.want) {
				t.Errorf("%s: cause is %v, want %v", name, got, c.want)
			}
		})
	}
}
