package executor

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// kernelLog is dev-kmsg: Documentation/ABI/testing/dev-kmsg.
const kernelLog = "/dev/kmsg"

// logBound is how many records of the kernel's log are read at most: more than its largest
// buffer holds, so that a process that writes to it all the time delays no reader.
const logBound = 1 << 18

// A victim is what the OOM killer may have taken: a process of the cgroup whose
// path's last name is group, which no other has ever had, or of one below; or
// process pid, of which the kernel's log may tell other ends from before since.
type victim struct {
	group string
	pid   int           // 0: the number says nothing
	since time.Duration // on the clock of the kernel's log
}

// newVictim is for a container whose init has the pid and began at start, field 22
// of proc_pid_stat(5); 0: not known.
func newVictim(cgroup string, pid int, start uint64) victim {
	v := victim{group: filepath.Base(cgroup)}
	if start != 0 && initialPIDs() {
		const tick = time.Second / 100 // USER_HZ
		age := clock(unix.CLOCK_BOOTTIME) - time.Duration(start)*tick
		v.pid, v.since = pid, clock(unix.CLOCK_MONOTONIC_RAW)-age-logSlack
	}
	return v
}

// logSlack is how far the clock of the kernel's log may be behind
// CLOCK_MONOTONIC_RAW. Both count the same hardware, with no correction by NTP, but
// do not begin at the same moment.
const logSlack = 2 * time.Second

func clock(id int32) time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(id, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// logged looks in the kernel's log for a kill of v by the OOM killer, see killed.
// It is asked when the cgroup that has counted it is gone.
//
// Of the ways to know, this one has no race: the kernel writes before it lets the
// victim go, and a cgroup goes after its processes. systemd's word for it, the
// scope's Result, is not said of scopes that are delegated (OOMPolicy= of
// systemd.scope(5), systemd 253), and goes with the scope. The counter of the cgroup
// above does not say whose kill it was. And what would keep the scope is a process in
// it, one for each container.
func (v victim) logged() bool {
	fd, err := unix.Open(kernelLog, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false // a container's /dev, or no CAP_SYSLOG: what was counted is what is known
	}
	defer unix.Close(fd)
	var record [8192]byte // CONSOLE_EXT_LOG_MAX
	for range logBound {
		switch n, err := unix.Read(fd, record[:]); {
		case err == unix.EPIPE || err == unix.EINTR: // it was overwritten
		case err != nil || n == 0:
			return false
		case v.killed(string(record[:n])):
			return true
		}
	}
	return false
}

// killed tells whether a record of the kernel's log is of a kill of v:
//
//	6,844,83725,-;oom-kill:constraint=…,oom_memcg=PATH,task_memcg=PATH,task=NAME,pid=PID,uid=0
//	3,845,83731,-;Memory cgroup out of memory: Killed process PID (NAME) total-vm:…
//
// The kernel leaves the first one out when it kills often: dump_oom_victim and
// __oom_kill_process of mm/oom_kill.c. The third field is a time in microseconds.
func (v victim) killed(record string) bool {
	head, text, ok := strings.Cut(record, ";")
	fields := strings.Split(head, ",")
	if level, err := strconv.Atoi(fields[0]); !ok || len(fields) < 3 || err != nil || level >= 8 {
		return false // with a facility: some program has written it
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

// initialPIDs tells whether our process IDs are those of the kernel's log.
func initialPIDs() bool {
	ns, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && ns == "pid:[4026531836]" // PROC_PID_INIT_INO, include/linux/proc_ns.h
}
