package server

import (
	"context"
	"fmt"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/singleflight"
)

// taskLife limits one run of a task. If a process cannot be killed (state D), the run ends with
// an error; the next call tries again.
const taskLife = 3 * time.Minute

// tasks are the stops and removals under way, by key. Calls with the same key share one run,
// which continues when its callers leave: a half-finished teardown is of no use.
type tasks struct {
	group singleflight.Group[struct{}]
}

// start lets tasks run as detached work of the server, until ctx ends.
func (ts *tasks) start(ctx context.Context, work *detached) {
	ts.group.Ctx, ts.group.Begin, ts.group.Detached = ctx, work.start, true
}

// do runs work under key, or waits for the run already under way.
func (ts *tasks) do(ctx context.Context, key string, work func(context.Context) error) error {
	_, err := ts.join(ctx, key, work)
	return err
}

// alone runs work under key, after any run already under way.
func (ts *tasks) alone(ctx context.Context, key string, work func(context.Context) error) error {
	for {
		mine, err := ts.join(ctx, key, work)
		if mine {
			return err
		}
		if ctx.Err() != nil { // even if the other run has just succeeded
			return fmt.Errorf("%s was not begun: %w", key, ctx.Err())
		}
	}
}

// join runs work or waits for the run already under way; mine reports which.
func (ts *tasks) join(ctx context.Context, key string, work func(context.Context) error) (mine bool, err error) {
	c, mine := ts.group.Join(ctx, key, func() struct{} { return struct{}{} }, func(ctx context.Context, _ struct{}) error {
		ctx, cancel := context.WithTimeout(ctx, taskLife)
		defer cancel()
		return work(ctx)
	})
	if c == nil {
		return true, fault.Unavailable.Errorf("%s: crispd is stopping", key)
	}
	if err = c.Wait(ctx); err != nil && ctx.Err() == err {
		err = fmt.Errorf("%s continues: %w", key, err)
	}
	return mine, err
}
