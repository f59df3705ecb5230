package housekeeping

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"

	"golang.org/x/sys/unix"
)

// systemOOM is what the kernel says when the machine, and not a cgroup, has run
// out of memory. That of a container is known from its exit.
var systemOOM = regexp.MustCompile(`oom-kill:constraint=CONSTRAINT_(?:NONE|CPUSET|MEMORY_POLICY).*,task=(.+),pid=(\d+),uid=\d+`)

// oomEvent is what the event says of a line of the kernel; "" for any other line.
func oomEvent(line string) string {
	if m := systemOOM.FindStringSubmatch(line); m != nil {
		return fmt.Sprintf("System OOM encountered, victim process: %s, pid: %s", m[1], m[2])
	}
	return ""
}

// watchOOM calls report for each process that the kernel kills because the machine has run
// out of memory, from now on until ctx ends. OOM kills of a memory cgroup are left out.
func watchOOM(ctx context.Context, log *slog.Logger, report func(string)) {
	f, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err == nil {
		_, err = f.Seek(0, io.SeekEnd)
	}
	if err != nil {
		log.InfoContext(ctx, "the kernel's messages cannot be read: its OOM kills will not be reported", "err", err)
		return
	}
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer stop()
	line := make([]byte, 8192)
	for {
		n, err := f.Read(line) // one message each time
		switch {
		case errors.Is(err, unix.EPIPE): // some were overwritten before they were read
		case err != nil:
			return
		default:
			if text := oomEvent(string(line[:n])); text != "" {
				report(text)
			}
		}
	}
}
