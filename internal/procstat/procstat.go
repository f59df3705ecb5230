// Package procstat reads /proc/<pid>/stat, proc_pid_stat(5).
package procstat

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Stat is what the kernel tells of a process.
type Stat struct {
	Name      string          // field 2, of up to 15 bytes: what the process calls itself
	State     byte            // field 3, as ps shows it
	Parent    int             // field 4, 0 = in no PID namespace that we see
	Flags     uint32          // field 9, PF_…
	StartTime uint64          // field 22, in clock ticks since boot
	Exit      unix.WaitStatus // field 52, of a zombie
}

// exiting is PF_EXITING.
const exiting = 0x4

// Ended tells whether the process is a zombie, or not even that any more.
func (s Stat) Ended() bool { return s.State == 'Z' || s.State == 'X' }

// Exiting tells whether the first thread of the process has begun to exit.
func (s Stat) Exiting() bool { return s.Flags&exiting != 0 }

// Read reads the stat of a process. The number may be another's by now, unless the
// caller holds a pidfd that says otherwise afterwards.
func Read(pid int) (Stat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Stat{}, err
	}
	return Parse(data)
}

// Parse reads a line of a file stat. The name may hold spaces and parentheses.
func Parse(line []byte) (s Stat, err error) {
	begin, end := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	fields := strings.Fields(string(line[end+1:]))
	if begin < 0 || end < begin || len(fields) < 50 {
		return Stat{}, fmt.Errorf("process status %.40q is cut short", line)
	}
	field := func(n, bits int) (v uint64) {
		if err == nil {
			v, err = strconv.ParseUint(fields[n-3], 10, bits)
		}
		return v
	}
	s = Stat{
		Name: string(line[begin+1 : end]), State: fields[0][0], Parent: int(field(4, 31)), Flags: uint32(field(9, 32)),
		StartTime: field(22, 64), Exit: unix.WaitStatus(field(52, 32)),
	}
	if err != nil {
		return Stat{}, fmt.Errorf("process status %.40q: %w", line, err)
	}
	return s, nil
}
