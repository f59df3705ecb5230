package oci

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
)

// find returns a pidfd of the process if it is still there.
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
	if !alive(pid, startTime) { // asked after the pidfd was taken: it is the one or none
		f.Close()
		return nil, fmt.Errorf("process %d has ended", pid)
	}
	return f, nil
}

// alive reports whether the process that started at startTime still has pid. A
// pid alone may be anybody's by now. A zombie is not alive.
func alive(pid int, startTime uint64) bool {
	if pid <= 0 {
		return false
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	state, start, err := parseStat(data)
	return err == nil && start == startTime && state != 'Z' && state != 'X'
}

// parseStat returns the state and the start time (fields 3 and 22, in clock
// ticks since boot) of a /proc/<pid>/stat, proc_pid_stat(5). Field 2, the
// command, may hold spaces and parentheses.
func parseStat(data []byte) (state byte, startTime uint64, err error) {
	i := bytes.LastIndexByte(data, ')')
	fields := bytes.Fields(data[i+1:])
	if i < 0 || len(fields) < 20 {
		return 0, 0, fmt.Errorf("process status %q is cut short", data)
	}
	startTime, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return fields[0][0], startTime, err
}
