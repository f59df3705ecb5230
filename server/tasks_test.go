package server

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// endsLate is a context that ends without waking its waiters.
type endsLate struct {
	context.Context
	ended *atomic.Bool
}

func (c endsLate) Done() <-chan struct{} { return nil }

func (c endsLate) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return nil
}

// A caller who gives up at the moment at which the run before his succeeds is not told that his
// own work was done.
func TestAloneGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ts tasks
		var running detached
		ts.start(t.Context(), &running)
		finish, first := make(chan struct{}), make(chan error, 1)
		var ended atomic.Bool
		go func() {
			first <- ts.alone(t.Context(), "update", func(context.Context) error {
				<-finish
				ended.Store(true)
				return nil
			})
		}()
		synctest.Wait()
		second, ran := make(chan error, 1), false
		go func() {
			second <- ts.alone(endsLate{t.Context(), &ended}, "update", func(context.Context) error { ran = true; return nil })
		}()
		synctest.Wait()
		close(finish)
		if err := <-first; err != nil {
			t.Error(err)
		}
		if err := <-second; ran || !errors.Is(err, context.Canceled) {
			t.Errorf("work that ran: %v, ended with %v", ran, err)
		}
		running.close()
	})
}
