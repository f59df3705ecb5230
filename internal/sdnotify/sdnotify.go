// Package sdnotify tells the service manager how a daemon is, as sd_notify(3) does.
// It is these lines instead of a library because they are all of it.
package sdnotify

import (
	"context"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"
)

// Notify tells the service manager a state: a datagram to $NOTIFY_SOCKET. Without a
// manager that listens it does nothing.
func Notify(state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	if path[0] == '@' { // the abstract namespace
		path = "\x00" + path[1:]
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = c.Write([]byte(state)) // nobody could be told of an error
}

// Interval is how often the manager must hear of us, 0 if it does not care
// (sd_watchdog_enabled(3)).
func Interval() time.Duration {
	usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || usec <= 0 {
		return 0
	}
	if pid := os.Getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	return time.Duration(usec) * time.Microsecond
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
