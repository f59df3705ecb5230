package oci

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

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
