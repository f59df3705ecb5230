// Package singleflight shares one run of work among the callers who ask for the same thing
// meanwhile. It is golang.org/x/sync/singleflight for work with a context: each caller waits no
// longer than its own context lasts, and the work does not run on the context of the caller who
// began it.
//
//	Join ──▶ under way ──▶ ended: the key is free, and each waiting caller gets the outcome
//	             │
//	             └ the last caller leaves: cancelled, and the key is free at once;
//	               in a Detached Group it continues
package singleflight

import (
	"context"
	"sync"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/stage"
)

// A Group is the work under way, by key. T is what the work shares with those who wait for it.
type Group[T any] struct {
	// Begin runs f in its own goroutine and returns true; false = nothing may begin any more.
	// What it runs does not panic.
	Begin func(f func()) bool
	// Ctx cancels all work when it ends.
	Ctx context.Context
	// Detached work continues when its last caller has left.
	Detached bool

	mu    sync.Mutex
	calls map[string]*Call[T] // guarded by mu
}

// A Call is one run of work.
type Call[T any] struct {
	// Shared is created before the work begins. What the work writes to it may be read once Wait
	// has returned without an error of the caller's own context.
	Shared T

	group   *Group[T]
	key     string
	stages  *stage.Log // nil if there is no record
	done    chan struct{}
	err     error // written before done is closed
	cancel  context.CancelFunc
	waiters int // guarded by Group.mu
}

// Join returns the run under key. Without one it calls share and begins work; mine reports whether
// it did. The work's context has the values of ctx, and all callers see the stages of the work.
// Join returns nil if nothing may begin any more. The caller must Wait.
func (g *Group[T]) Join(ctx context.Context, key string, share func() T, work func(context.Context, T) error) (c *Call[T], mine bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c = g.calls[key]; c == nil {
		if c = g.begin(ctx, key, share, work); c == nil {
			return nil, false
		}
		mine = true
	}
	c.waiters++
	stage.Follow(ctx, c.stages)
	return c, mine
}

// begin begins a run and registers it; the caller holds g.mu.
func (g *Group[T]) begin(ctx context.Context, key string, share func() T, work func(context.Context, T) error) *Call[T] {
	ctx, stages := stage.Fork(context.WithoutCancel(ctx))
	ctx, cancel := context.WithCancel(ctx)
	c := &Call[T]{Shared: share(), group: g, key: key, stages: stages, done: make(chan struct{}), cancel: cancel}
	stop := context.AfterFunc(g.Ctx, cancel)
	begun := g.Begin(func() {
		defer cancel()
		defer stop()
		c.err = fault.Protect(func() error { return work(ctx, c.Shared) })
		stages.Stop()
		g.mu.Lock()
		g.forget(c)
		g.mu.Unlock()
		close(c.done)
	})
	if !begun {
		stop()
		cancel()
		return nil
	}
	if g.calls == nil {
		g.calls = make(map[string]*Call[T])
	}
	g.calls[key] = c
	return c
}

// Wait returns the work's error when it has ended. If ctx ends first, the caller leaves the work
// and Wait returns ctx's error.
func (c *Call[T]) Wait(ctx context.Context) error {
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		c.leave()
		return ctx.Err()
	}
}

// leave removes a caller from c. The last caller cancels it, unless its group is Detached, and
// later callers do not join it.
func (c *Call[T]) leave() {
	g := c.group
	g.mu.Lock()
	defer g.mu.Unlock()
	c.waiters--
	if c.waiters > 0 || g.Detached {
		return
	}
	c.cancel()
	g.forget(c)
}

// forget frees the key of c; the caller holds g.mu.
func (g *Group[T]) forget(c *Call[T]) {
	if g.calls[c.key] == c {
		delete(g.calls, c.key)
	}
}
