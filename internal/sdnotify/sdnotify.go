// Package sdnotify reports a daemon's state to the service manager, as sd_notify(3)
// does.
package sdnotify

import (
	"context"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Notify sends a state to the service manager, if there is one.
func Notify(state string) {
	_, _ = daemon.SdNotify(false, state) // an error could not be reported
}

// Reloading announces the start of a reload; READY=1 announces its end.
func Reloading() { Notify("RELOADING=1\n" + daemon.SdNotifyMonotonicUsec()) }

// Interval returns how often the service manager expects a keep-alive, 0 if it does
// not (sd_watchdog_enabled(3)).
func Interval() time.Duration {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil { // never with systemd
		return 0
	}
	return interval
}

// Watchdog sends two keep-alives in each interval, but only after alive has returned nil, which
// must not take longer than half of the interval. The manager shows status.
func Watchdog(ctx context.Context, interval time.Duration, alive func(context.Context) error, status func() string, log *slog.Logger) {
	tick := time.NewTicker(interval / 2)
	defer tick.Stop()
	for {
		try, cancel := context.WithTimeout(ctx, interval/2)
		err := alive(try)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			log.Error("service manager not notified that we are alive", "err", err)
		default:
			Notify("WATCHDOG=1\nSTATUS=" + status())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
