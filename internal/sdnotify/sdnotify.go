// Package sdnotify reports a daemon's state to the service manager, as sd_notify(3)
// does.
package sdnotify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
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

// A Store keeps descriptors with the service manager while the daemon does not run
// (FileDescriptorStoreMax= of systemd.service(5), FDSTORE=1 of sd_notify(3)). The daemon chooses
// the names; they come back in one environment variable of at most 128 KiB (MAX_ARG_STRLEN,
// execve(2)), so they should be short, and must not contain a colon.
type Store struct{ address string }

// NewStore returns the store of the service manager, or nil without a manager.
func NewStore() *Store {
	if address := os.Getenv("NOTIFY_SOCKET"); address != "" {
		return &Store{address}
	}
	return nil
}

// Keep passes a duplicate of f to the manager. The manager does not close it when its other end
// is closed (FDPOLL=0, systemd 246): a pipe may still hold unread data. If the manager has no
// room left, only its own log says so.
func (s *Store) Keep(name string, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Control(func(fd uintptr) {
		serr = s.send("FDSTORE=1\nFDPOLL=0\nFDNAME="+name, unix.UnixRights(int(fd)))
	})
	return errors.Join(err, serr)
}

// Forget has the manager close its descriptors of that name.
func (s *Store) Forget(name string) error {
	return s.send("FDSTOREREMOVE=1\nFDNAME="+name, nil)
}

// storeTime bounds how long to wait for a manager that does not read.
const storeTime = time.Second

func (s *Store) send(state string, rights []byte) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: s.address, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("reach service manager: %w", err)
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(storeTime))
	}
	var serr error
	if err == nil {
		err = raw.Write(func(fd uintptr) bool { // WriteMsgUnix refuses a connected socket
			serr = unix.Sendmsg(int(fd), []byte(state), rights, nil, unix.MSG_NOSIGNAL)
			return serr != unix.EAGAIN
		})
	}
	if err = errors.Join(err, serr); err != nil {
		return fmt.Errorf("tell service manager: %w", err)
	}
	return nil
}

// firstKept is the first descriptor that a manager passes, SD_LISTEN_FDS_START.
const firstKept = 3

// Kept takes over the descriptors that the manager has kept (sd_listen_fds(3)), by name, before
// anything is executed that could inherit them. They are bare numbers, close-on-exec, because
// the poller would watch an os.File.
func Kept() (map[string]int, error) {
	pid, n, list := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_FDNAMES")
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		os.Unsetenv(name) // they are not for our children
	}
	if n == "" || n == "0" || pid != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	count, err := strconv.Atoi(n)
	if err != nil || count < 0 {
		return nil, fmt.Errorf("service manager passes %q descriptors", n)
	}
	names := strings.Split(list, ":")
	kept := make(map[string]int, count)
	for i := range count {
		fd := firstKept + i
		unix.CloseOnExec(fd)
		if _, twice := kept[names[min(i, len(names)-1)]]; twice || len(names) != count {
			unix.Close(fd)
			continue
		}
		kept[names[i]] = fd
	}
	if len(names) != count {
		return nil, fmt.Errorf("service manager passes %d descriptors and %d names", count, len(names))
	}
	return kept, nil
}
