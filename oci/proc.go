package oci

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/procstat"
	"github.com/crisp-cri/crisp/oci/wire"
)

// find returns a pidfd of the process if it is still alive.
func (r *Runtime) find(pid int, startTime uint64) []*os.File {
	f, err := r.host.Find(pid, startTime)
	if err != nil {
		return nil
	}
	return []*os.File{f}
}

// Find implements Host.
func (k *kernel) Find(pid int, startTime uint64) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	f := os.NewFile(uintptr(fd), wire.FDPid)
	if !alive(pid, startTime) { // checked after the pidfd was opened: it is this process or none
		f.Close()
		return nil, fmt.Errorf("process %d has ended", pid)
	}
	return f, nil
}

// alive reports whether pid is the process that started at startTime. The PID alone may have
// been reused. A zombie is not alive.
func alive(pid int, startTime uint64) bool {
	if pid <= 0 {
		return false
	}
	stat, err := procstat.Read(pid)
	return err == nil && stat.StartTime == startTime && !stat.Ended()
}
