// Package sdnotify tells the service manager how a daemon is, as sd_notify(3) does.
package sdnotify

import (
	"context"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Notify tells the service manager a state, if there is one that listens.
func Notify(state string) {
	_, _ = daemon.SdNotify(false, state) // nobody could be told of an error
}

// Reloading tells it that a reload begins; READY=1 tells the end.
func Reloading() { Notify("RELOADING=1\n" + daemon.SdNotifyMonotonicUsec()) }

// Interval is how often the manager must hear of us, 0 if it does not care
// (sd_watchdog_enabled(3)).
func Interval() time.Duration {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil { // what systemd never says
		return 0
	}
	return interval
}

// Watchdog tells the manager twice in each interval that we live, but only after
// alive said so; it must not take longer than half of the interval. status is what
// the manager shows.
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
			log.Error("service manager not told that we live", "err", err)
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
