package main

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The agent notifies the service manager that it serves, even before there is a runtime, that it is
// alive, what it does, and that it stops.
func TestServiceManager(t *testing.T) {
	n := newNode(t)
	n.away()
	path := filepath.Join(n.dir, "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "20000")
	t.Setenv("WATCHDOG_PID", "")
	n.manifest("web.yaml", webPod)
	hears := func(want ...string) {
		t.Helper()
		if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 1000)
		for last := ""; ; {
			size, err := c.Read(buf)
			if err != nil {
				t.Fatalf("%v; heard last %q, want %q", err, last, want)
			}
			last = string(buf[:size])
			all := true
			for _, w := range want {
				all = all && strings.Contains(last, w)
			}
			if all {
				return
			}
		}
	}
	stop := n.agent()
	hears("READY=1", "does not answer")
	hears("WATCHDOG=1", "STATUS=1 pods; the runtime at "+n.socket+" does not answer")
	n.startRuntime()
	hears("WATCHDOG=1\nSTATUS=1 pods")
	stop()
	hears("STOPPING=1")
}
