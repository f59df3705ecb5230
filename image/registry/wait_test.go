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
// with a registry that asks for endless waits, or whose response never ends, is bounded too: the
// library waits for 60 s if it is told to wait for an hour.
func TestWatch(t *testing.T) {
	const limit = 60 * time.Second
	for name, c := range map[string]struct {
		answer, rest time.Duration // time until each response, and from that to the next request
		requests     int
		want         error
	}{
		"each in its time":     {45 * time.Second, 0, 4, nil},
		"one that is late":     {61 * time.Second, 0, 1, errNoAnswer},
		"too many":             {45 * time.Second, 0, 9, errNoAnswer},
		"one that has us wait": {time.Second, 60 * time.Second, 1, docker.ErrTooManyRequests},
		"at once":              {0, 60 * time.Second, 2, docker.ErrTooManyRequests},
		"briefly":              {0, 15 * time.Second, 3, nil},
		"and again":            {0, 15 * time.Second, 9, docker.ErrTooManyRequests},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			w := newWatch(limit, longestRest, cancel, errNoAnswer)
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
