package executor

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
)

// letRun makes libcontainer's init, which is ready, execute the container's program, by reading
// what it writes to the fifo. libcontainer's own way leaves a thread in open(2) for good if the
// process exits before it has opened its end.
func letRun(fifo string, pid int) error {
	pidfd, err := unix.PidfdOpen(pid, 0) // our child, and not reaped
	if err != nil {
		return fmt.Errorf("pidfd of process %d: %w", pid, err)
	}
	defer unix.Close(pidfd)
	f, err := unix.Open(fifo, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: fifo, Err: err}
	}
	defer unix.Close(f)
	// A fifo is not hung up if nobody has opened it for writing since we opened it, fifo(7).
	ends := []unix.PollFd{{Fd: int32(f), Events: unix.POLLIN}, {Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(ends, -1); err == unix.EINTR {
			continue
		} else if err != nil {
			return os.NewSyscallError("poll", err)
		}
		if n, err := unix.Read(f, make([]byte, 16)); err == nil && n > 0 {
			return os.Remove(fifo) // tells libcontainer that it is running
		}
		if ends[0].Revents != 0 || ends[1].Revents != 0 {
			return fault.Internal.Errorf("container ended before its program was executed")
		}
	}
}
