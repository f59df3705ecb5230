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

// systemOOM matches the kernel's message about an OOM kill for lack of memory on the whole
// machine, not in a memory cgroup. A container's own OOM kill is known from its exit.
var systemOOM = regexp.MustCompile(`oom-kill:constraint=CONSTRAINT_(?:NONE|CPUSET|MEMORY_POLICY).*,task=(.+),pid=(\d+),uid=\d+`)

// oomEvent returns the message of the event for a line of the kernel's log, "" if the line is
// about something else.
func oomEvent(line string) string {
	if m := systemOOM.FindStringSubmatch(line); m != nil {
		return fmt.Sprintf("System OOM encountered, victim process: %s, pid: %s", m[1], m[2])
	}
	return ""
}

// watchOOM calls report for each process that the kernel kills because the machine ran out of
// memory, from now on until ctx ends. It leaves out OOM kills of a memory cgroup.
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
		case errors.Is(err, unix.EPIPE): // some messages were overwritten before they were read
		case err != nil:
			return
		default:
			if text := oomEvent(string(line[:n])); text != "" {
				report(text)
			}
		}
	}
}
