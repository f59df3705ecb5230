package agent

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// stalled is how long a turn of the loop may take before Health reports it. Only tests change
// it.
var stalled = 2 * time.Minute

// A heartbeat detects a stuck loop.
type heartbeat struct {
	last atomic.Int64 // when the loop last began a turn; Unix ns
}

func (h *heartbeat) beat() { h.last.Store(time.Now().UnixNano()) }

// Health returns an error if the loop has not started, or is stuck.
func (h *heartbeat) Health() error {
	last := h.last.Load()
	if last == 0 {
		return errors.New("the loop has not started")
	}
	if still := time.Since(time.Unix(0, last)); still > stalled {
		return fmt.Errorf("the loop has been stuck for %s", still.Round(time.Second))
	}
	return nil
}
