package executor

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// kernelLog is the device of Documentation/ABI/testing/dev-kmsg.
const kernelLog = "/dev/kmsg"

// logBound is the maximum number of records read from the kernel's log: more than its largest
// buffer holds, so that a process that keeps writing to it cannot delay readers.
const logBound = 1 << 18

// A victim is a process that the OOM killer may have killed: one of the cgroup whose path ends
// with the unique name group, or of one below; or process pid, unless the kernel's record is
// older than since, when the PID may have been another process's.
type victim struct {
	group string
	pid   int           // 0: unknown
	since time.Duration // on the clock of the kernel's log
}

// newVictim returns the victim of a container whose init has the pid and began at start, field
// 22 of proc_pid_stat(5); 0: unknown.
func newVictim(cgroup string, pid int, start uint64) victim {
	v := victim{group: filepath.Base(cgroup)}
	if start != 0 && initialPIDs() {
		const tick = time.Second / 100 // USER_HZ
		age := clock(unix.CLOCK_BOOTTIME) - time.Duration(start)*tick
		v.pid, v.since = pid, clock(unix.CLOCK_MONOTONIC_RAW)-age-logSlack
	}
	return v
}

// logSlack is how far the clock of the kernel's log may be behind CLOCK_MONOTONIC_RAW. Both
// count the same hardware, uncorrected by NTP, but do not begin at the same moment.
const logSlack = 2 * time.Second

func clock(id int32) time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(id, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// logged searches the kernel's log for a kill of v by the OOM killer, see killed. It is used
// when the cgroup with the counter is gone.
//
// Only the log has no race: the kernel writes to it before it releases the victim, and a cgroup
// outlives its processes. systemd does not set the Result of a delegated scope (OOMPolicy= of
// systemd.scope(5), systemd 253), and it vanishes with the scope. The counter of the parent
// cgroup does not say whose process was killed. And keeping the scope would take a process in
// it, one for each container.
func (v victim) logged() bool {
	fd, err := unix.Open(kernelLog, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false // a container's /dev, or no CAP_SYSLOG: rely on the counter
	}
	defer unix.Close(fd)
	var record [8192]byte // CONSOLE_EXT_LOG_MAX
	for range logBound {
		switch n, err := unix.Read(fd, record[:]); {
		case err == unix.EPIPE || err == unix.EINTR: // overwritten
		case err != nil || n == 0:
			return false
		case v.killed(string(record[:n])):
			return true
		}
	}
	return false
}

// killed reports whether a record of the kernel's log is about a kill of v:
//
//	6,844,83725,-;oom-kill:constraint=…,oom_memcg=PATH,task_memcg=PATH,task=NAME,pid=PID,uid=0
//	3,845,83731,-;Memory cgroup out of memory: Killed process PID (NAME) total-vm:…
//
// The kernel omits the first one when it kills often: dump_oom_victim and __oom_kill_process of
// mm/oom_kill.c. The third field is a time in microseconds.
func (v victim) killed(record string) bool {
	head, text, ok := strings.Cut(record, ";")
	fields := strings.Split(head, ",")
	if level, err := strconv.Atoi(fields[0]); !ok || len(fields) < 3 || err != nil || level >= 8 {
		return false // with a facility: written by a program
	}
	text, _, _ = strings.Cut(text, "\n")
	if _, path, ok := strings.Cut(text, ",task_memcg="); ok {
		path, _, _ = strings.Cut(path, ",task=")
		return strings.Contains(path+"/", "/"+v.group+"/")
	}
	_, pid, ok := strings.Cut(text, "ut of memory: Killed process ")
	pid, _, _ = strings.Cut(pid, " ")
	at, err := strconv.ParseInt(fields[2], 10, 64)
	return ok && err == nil && v.pid != 0 && pid == strconv.Itoa(v.pid) && time.Duration(at)*time.Microsecond >= v.since
}

// initialPIDs reports whether our process IDs are those of the kernel's log.
func initialPIDs() bool {
	ns, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && ns == "pid:[4026531836]" // PROC_PID_INIT_INO, include/linux/proc_ns.h
}
