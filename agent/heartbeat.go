package agent

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/internal/sdnotify"
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

// notifySystemd notifies the service manager that the agent serves and, if the unit has
// WatchdogSec, regularly that it is alive while the loop runs. It does so even without a
// runtime, because restarting the agent would not bring that back.
func (a *Agent) notifySystemd(ctx context.Context) {
	sdnotify.Notify("READY=1\nSTATUS=" + a.shown.Line(criruntime.State{}))
	if interval := sdnotify.Interval(); interval > 0 {
		alive := func(context.Context) error { return a.Health() }
		go sdnotify.Watchdog(ctx, interval, alive, func() string { return a.shown.Line(a.host.Readiness.Get()) }, a.o.Log)
	}
}
