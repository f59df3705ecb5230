// Package procstat reads /proc/<pid>/stat, proc_pid_stat(5), and lists of processes.
package procstat

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Stat is the kernel's information about a process.
type Stat struct {
	Name      string          // field 2, up to 15 bytes that the process may choose
	State     byte            // field 3, as ps shows it
	Parent    int             // field 4, 0 = not in a PID namespace that we see
	Session   int             // field 6, the PID of its leader
	Flags     uint32          // field 9, PF_…
	Threads   int             // field 20
	StartTime uint64          // field 22, in clock ticks since boot
	Exit      unix.WaitStatus // field 52, of a zombie
}

// Flags of Stat, PF_EXITING and PF_FORKNOEXEC of the kernel's sched.h.
const (
	exiting    = 0x4
	forkNoExec = 0x40
)

// Ended reports whether the process has ended. If only its first thread has, proc_pid_stat(5) shows
// a zombie, too.
func (s Stat) Ended() bool { return (s.State == 'Z' || s.State == 'X') && s.Threads <= 1 }

// Exiting reports whether the first thread of the process has begun to exit.
func (s Stat) Exiting() bool { return s.Flags&exiting != 0 }

// Forked reports whether the process, or zombie, has executed no program since its fork.
func (s Stat) Forked() bool { return s.Flags&forkNoExec != 0 }

// Read reads the stat of a process. The PID may have been reused, unless the caller checks a
// pidfd afterwards.
func Read(pid int) (Stat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Stat{}, err
	}
	return Parse(data)
}

// Ending reports whether a process has ended or is about to: the kernel then closes its files (the
// last thread does, after the first has begun to exit or is a zombie). It is false for 0.
func Ending(pid int) bool {
	if pid == 0 {
		return false
	}
	stat, err := Read(pid)
	return err != nil || stat.Ended() || stat.Exiting()
}

// PIDs returns the processes in a file such as cgroup.procs or proc_pid_task_tid_children(5): those
// in a PID namespace that we see, and none if it cannot be read.
func PIDs(file string) (pids []int) {
	data, _ := os.ReadFile(file)
	for field := range strings.FieldsSeq(string(data)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
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
		Name: string(line[begin+1 : end]), State: fields[0][0], Parent: int(field(4, 31)), Session: int(field(6, 31)), Flags: uint32(field(9, 32)),
		Threads: int(field(20, 31)), StartTime: field(22, 64), Exit: unix.WaitStatus(field(52, 32)),
	}
	if err != nil {
		return Stat{}, fmt.Errorf("process status %.40q: %w", line, err)
	}
	return s, nil
}
