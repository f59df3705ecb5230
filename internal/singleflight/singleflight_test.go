package singleflight

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
)

// newGroup returns a group whose work is counted and takes a minute, if it is not cancelled.
func newGroup(t *testing.T) (g *Group[*int], work func(context.Context, *int) error, runs *atomic.Int32) {
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	runs = new(atomic.Int32)
	g = &Group[*int]{Ctx: t.Context(), Begin: func(f func()) bool { running.Go(f); return true }}
	return g, func(ctx context.Context, answer *int) error {
		run := runs.Add(1)
		select {
		case <-time.After(time.Minute):
			*answer = int(run)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}, runs
}

func newInt() *int { return new(int) }

// Callers with the same key share the outcome of one run; another key has its own run.
func TestOneRunForOneKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, work, runs := newGroup(t)
		a, mine := g.Join(t.Context(), "a", newInt, work)
		same, again := g.Join(t.Context(), "a", newInt, work)
		if !mine || again || a != same {
			t.Errorf("the second caller has another run: %v, %v", mine, again)
		}
		b, mine := g.Join(t.Context(), "b", newInt, work)
		if !mine || a == b {
			t.Error("another key has the same run")
		}
		for _, c := range []*Call[*int]{a, same, b} {
			if err := c.Wait(t.Context()); err != nil || *c.Shared == 0 {
				t.Errorf("got %v, %d", err, *c.Shared)
			}
		}
		if runs.Load() != 2 {
			t.Errorf("%d runs, want 2", runs.Load())
		}
		if _, mine := g.Join(t.Context(), "a", newInt, work); !mine {
			t.Error("a call joined a run that had ended")
		}
	})
}

// Work without callers is cancelled, and the next call starts a new run. Detached work continues,
// and can be joined.
func TestLastCallerLeaves(t *testing.T) {
	for _, detached := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			g, work, runs := newGroup(t)
			g.Detached = detached
			short, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			longer, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			first, _ := g.Join(short, "a", newInt, work)
			second, _ := g.Join(longer, "a", newInt, work)
			if err := first.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the first caller gets %v", err)
			}
			if c, mine := g.Join(t.Context(), "a", newInt, work); mine {
				t.Error("the work has ended while a caller waited")
			} else {
				c.leave()
			}
			if err := second.Wait(longer); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the second caller gets %v", err)
			}
			last, mine := g.Join(t.Context(), "a", newInt, work)
			if mine == detached {
				t.Errorf("detached %v: begun anew: %v", detached, mine)
			}
			want := map[bool]int{false: 2, true: 1}[detached]
			if err := last.Wait(t.Context()); err != nil || *last.Shared != want || int(runs.Load()) != want {
				t.Errorf("detached %v: %v, run %d of %d, want %d", detached, err, *last.Shared, runs.Load(), want)
			}
		})
	}
}

// The group's end cancels work that callers wait for.
func TestGroupEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, work, _ := newGroup(t)
		var end context.CancelFunc
		g.Ctx, end = context.WithCancel(t.Context())
		c, _ := g.Join(t.Context(), "a", newInt, work)
		end()
		if err := c.Wait(t.Context()); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

func TestNothingMayBegin(t *testing.T) {
	g, work, runs := newGroup(t)
	g.Begin = func(func()) bool { return false }
	if c, mine := g.Join(t.Context(), "a", newInt, work); c != nil || mine || runs.Load() != 0 {
		t.Errorf("got %v, %v after %d runs", c, mine, runs.Load())
	}
}

// A panic is the error of all waiting callers.
func TestPanic(t *testing.T) {
	g, _, _ := newGroup(t)
	begin := make(chan struct{})
	panics := func(context.Context, *int) error { <-begin; panic("bug") }
	one, _ := g.Join(t.Context(), "a", newInt, panics)
	two, _ := g.Join(t.Context(), "a", newInt, panics)
	close(begin)
	for _, c := range []*Call[*int]{one, two} {
		err := c.Wait(t.Context())
		if p, ok := errors.AsType[*fault.Panic](err); !ok || p.Value != "bug" || len(p.Stack) == 0 {
			t.Errorf("got %v", err)
		}
	}
}
