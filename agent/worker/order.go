package worker

import (
	"context"

	"github.com/crisp-cri/crisp/agent/podsync"
)

// An order lets containers that are stopped concurrently wait for each other.
type order map[string]chan struct{} // ID → closed when its stop has returned

func newOrder(actions []podsync.Action) order {
	o := order{}
	for _, a := range actions {
		if a.Verb == podsync.StopContainer {
			o[a.ID] = make(chan struct{})
		}
	}
	return o
}

func (o order) ended(id string) { close(o[id]) }

// turn returns a channel that is closed when the stops that must precede a have returned, or ctx
// has ended. It does not wait for a container whose stop is not among the actions, since it is
// held back after a failure.
func (o order) turn(ctx context.Context, a podsync.Action) <-chan struct{} {
	turn := make(chan struct{})
	go func() {
		defer close(turn)
		for _, id := range a.After {
			if before, ok := o[id]; ok {
				select {
				case <-before:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return turn
}
