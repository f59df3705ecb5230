package sdnotify_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/internal/sdnotify"
)

func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	for name, address := range map[string]string{path: path, "@crisp-test-" + filepath.Base(t.TempDir()): ""} {
		if address == "" {
			address = "\x00" + name[1:]
		}
		c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		t.Setenv("NOTIFY_SOCKET", name)
		sdnotify.Notify("READY=1")
		buf := make([]byte, 64)
		n, err := c.Read(buf)
		if err != nil || string(buf[:n]) != "READY=1" {
			t.Errorf("%q: got %q, %v", name, buf[:n], err)
		}
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "nobody"))
	sdnotify.Notify("READY=1") // must neither fail nor block
}

// The manager gets keep-alives from a daemon that responds, and none from one that does not.
func TestWatchdog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	asked := make(chan error) // the test sends each answer
	alive := func(ctx context.Context) error {
		select {
		case err := <-asked:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		sdnotify.Watchdog(ctx, 2*time.Minute, alive, func() string { return "2 sandboxes" }, slog.New(slog.DiscardHandler))
	}()
	asked <- nil
	buf := make([]byte, 100)
	if n, err := c.Read(buf); err != nil || string(buf[:n]) != "WATCHDOG=1\nSTATUS=2 sandboxes" {
		t.Errorf("got %q, %v", buf[:n], err)
	}
	cancel()
	<-ended

	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	go sdnotify.Watchdog(ctx, time.Millisecond, alive, func() string { return "" }, slog.New(slog.DiscardHandler))
	for range 10 {
		asked <- errors.New("no answer")
	}
	cancel()
	sdnotify.Notify("LAST=1")
	if n, err := c.Read(buf); err != nil || string(buf[:n]) != "LAST=1" {
		t.Errorf("the manager heard %q, %v of a daemon that does not answer", buf[:n], err)
	}
}

func TestWatchdogInterval(t *testing.T) {
	for _, tt := range []struct {
		usec, pid string
		want      time.Duration
	}{
		{"", "", 0}, {"0", "", 0}, {"x", "", 0}, {"30000000", "", 30 * time.Second},
		{"30000000", strconv.Itoa(os.Getpid()), 30 * time.Second}, {"30000000", "1", 0},
	} {
		t.Setenv("WATCHDOG_USEC", tt.usec)
		t.Setenv("WATCHDOG_PID", tt.pid)
		if got := sdnotify.Interval(); got != tt.want {
			t.Errorf("usec %q, pid %q: %v, want %v", tt.usec, tt.pid, got, tt.want)
		}
	}
}
