// Package backoff paces repeated tries at something that cannot be waited for otherwise.
package backoff

import (
	"context"
	"time"
)

// A Backoff is a series of pauses between tries, each twice as long as the one before it.
type Backoff struct{ next, most time.Duration }

// New begins with first; most bounds the pauses.
func New(first, most time.Duration) *Backoff { return &Backoff{first, most} }

// Next returns how long the next pause is to be.
func (b *Backoff) Next() time.Duration {
	d := b.next
	b.next = min(2*d, b.most)
	return d
}

// Wait passes the next pause. If ctx ends first, that is the error.
func (b *Backoff) Wait(ctx context.Context) error {
	timer := time.NewTimer(b.Next())
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
