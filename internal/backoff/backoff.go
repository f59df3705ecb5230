// Package backoff paces retries of something that cannot be waited for otherwise.
package backoff

import (
	"context"
	"time"

	"github.com/crisp-cri/crisp/internal/periodic"
)

// A Backoff is a series of pauses between attempts, each twice as long as the one before.
type Backoff struct{ next, most time.Duration }

// New begins with first; most bounds the pauses.
func New(first, most time.Duration) *Backoff { return &Backoff{first, most} }

// Next returns the length of the next pause.
func (b *Backoff) Next() time.Duration {
	d := b.next
	b.next = min(2*d, b.most)
	return d
}

// Wait waits for the next pause. If ctx ends first, it returns ctx's error.
func (b *Backoff) Wait(ctx context.Context) error {
	if !periodic.Pause(ctx, b.Next()) {
		return ctx.Err()
	}
	return nil
}
