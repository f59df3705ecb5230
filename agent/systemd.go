package agent

import (
	"context"
	"fmt"

	"github.com/crisp-cri/crisp/agent/readiness"
	"github.com/crisp-cri/crisp/internal/sdnotify"
)

// notifySystemd notifies the service manager that the agent serves and, if the unit has
// WatchdogSec, regularly that it is alive, as long as the loop turns. A runtime that is away
// is no reason to restart the agent.
func (a *agent) notifySystemd(ctx context.Context) {
	sdnotify.Notify("READY=1\nSTATUS=" + a.conditions.line(readiness.State{}))
	if interval := sdnotify.Interval(); interval > 0 {
		alive := func(context.Context) error { return a.heartbeat.Health() }
		go sdnotify.Watchdog(ctx, interval, alive, func() string { return a.conditions.line(a.host.readiness.Get()) }, a.o.Log)
	}
}

// line is what the service manager shows.
func (c conditions) line(s readiness.State) string {
	switch pods := len(c.wanted.Pods()); {
	case !s.Answers:
		return fmt.Sprintf("%d pods; the runtime at %s does not answer", pods, c.endpoint)
	case !s.Ready(false):
		return fmt.Sprintf("%d pods; %s: %s", pods, s.Reason, s.Message)
	default:
		return fmt.Sprintf("%d pods", pods)
	}
}
