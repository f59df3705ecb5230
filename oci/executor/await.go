package executor

import (
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/procstat"
)

// initName is the name of libcontainer's child until it executes the container's program.
const initName = "runc:[2:INIT]"

// execPatience bounds how long a started container may take to execute its program; afterwards
// it counts as started. The wait is worth it, because a failure there (a script without its
// interpreter, a program for another machine) would otherwise only show as an exit code.
const execPatience = 2 * time.Second

// awaitExec returns once the process has executed its program. If that fails, the process has
// written the reason to its stderr, and has exited.
func awaitExec(pid int, ends *stdioEnds) error {
	pause := 100 * time.Microsecond
	for deadline := time.Now().Add(execPatience); time.Now().Before(deadline); pause = min(5*pause/4, 2*time.Millisecond) {
		stat, err := procstat.Read(pid)
		if err != nil || stat.Name != initName {
			return nil // has executed it; or has gone, for its waiter to see
		}
		if stat.Ended() {
			return fault.Internal.Errorf("%s", ends.complaint())
		}
		time.Sleep(pause)
	}
	return nil
}

// complaint reads what libcontainer's child wrote before it gave up.
func (ends *stdioEnds) complaint() string {
	f := ends.ours[2]
	if f == nil {
		f = ends.pty
	}
	text := "container ended before its program was executed"
	if f == nil {
		return text
	}
	buf := make([]byte, 1024)
	withFD(f, func(fd int) error {
		if n, err := unix.Read(fd, buf); err == nil && n > 0 {
			text = strings.TrimSpace(string(buf[:n]))
		}
		return nil
	})
	return text
}
