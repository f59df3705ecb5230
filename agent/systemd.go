package agent

import (
	"context"

	"github.com/crisp-cri/crisp/agent/readiness"
	"github.com/crisp-cri/crisp/internal/sdnotify"
)

// notifySystemd notifies the service manager that the agent serves and, if the unit has
// WatchdogSec, regularly that it is alive while the loop runs. It does so even without a
// runtime, because restarting the agent would not bring that back.
func (a *agent) notifySystemd(ctx context.Context) {
	sdnotify.Notify("READY=1\nSTATUS=" + a.conditions.Line(readiness.State{}))
	if interval := sdnotify.Interval(); interval > 0 {
		alive := func(context.Context) error { return a.heartbeat.Health() }
		go sdnotify.Watchdog(ctx, interval, alive, func() string { return a.conditions.Line(a.host.Readiness.Get()) }, a.o.Log)
	}
}
