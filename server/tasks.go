package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/stage"
)

// taskLife limits one run of a task. A process that cannot be killed (state D)
// makes the run end with an error; the next call tries again.
const taskLife = 3 * time.Minute

// tasks are the stops and removals under way, by key. Calls with the same key
// share one run, which goes on when its callers leave: a teardown cut in half
// because the kubelet was impatient helps nobody.
type tasks struct {
	ctx  context.Context // ends when the server closes
	work *detached

	mu    sync.Mutex
	byKey map[string]*task // guarded by mu
}

type task struct {
	stages *stage.Log // nil if nobody records
	done   chan struct{}
	err    error // written before done is closed
}

// do runs work under key, or waits for the run already under way.
func (ts *tasks) do(ctx context.Context, key string, work func(context.Context) error) error {
	t, _, err := ts.join(ctx, key, work)
	if err != nil {
		return err
	}
	return t.wait(ctx, key)
}

// alone runs work under key, after any run already under way.
func (ts *tasks) alone(ctx context.Context, key string, work func(context.Context) error) error {
	for {
		t, mine, err := ts.join(ctx, key, work)
		if err != nil {
			return err
		}
		err = t.wait(ctx, key)
		if mine || ctx.Err() != nil {
			return err
		}
	}
}

// wait returns how t ended, or an error if the caller stopped waiting.
func (t *task) wait(ctx context.Context, key string) error {
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return fmt.Errorf("%s goes on: %w", key, ctx.Err())
	}
}

// join returns the task for the key, and whether this call began it.
func (ts *tasks) join(ctx context.Context, key string, work func(context.Context) error) (t *task, mine bool, err error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t, ok := ts.byKey[key]; ok {
		stage.Follow(ctx, t.stages)
		return t, false, nil
	}
	if ts.byKey == nil {
		ts.byKey = make(map[string]*task)
	}
	t = &task{done: make(chan struct{})}
	caller := ctx
	ctx, t.stages = stage.Fork(context.WithoutCancel(ctx))
	stage.Follow(caller, t.stages)
	ctx, cancel := context.WithTimeout(ctx, taskLife)
	stop := context.AfterFunc(ts.ctx, cancel)
	begun := ts.work.start(func() {
		defer cancel()
		defer stop()
		t.err = protect(func() error { return work(ctx) })
		t.stages.Stop()
		ts.mu.Lock()
		delete(ts.byKey, key)
		ts.mu.Unlock()
		close(t.done)
	})
	if !begun {
		stop()
		cancel()
		return nil, false, fault.Unavailable.Errorf("%s: crispd is stopping", key)
	}
	ts.byKey[key] = t
	return t, true, nil
}
