package executor

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// kernelLog is dev-kmsg: Documentation/ABI/testing/dev-kmsg.
const kernelLog = "/dev/kmsg"

// logBound is how many records of the kernel's log are read at most: more than its
// largest buffer holds, so that one who writes to it all the time holds up nobody.
const logBound = 1 << 18

// loggedKill looks in the kernel's log for a kill of the OOM killer, see
// killRecord. It is asked when the cgroup that has counted it is gone.
//
// Of the ways to know, this one has no race: the kernel writes before it lets the
// victim go, and a cgroup goes after its processes. systemd's word for it, the
// scope's Result, is not said of scopes that are delegated (OOMPolicy= of
// systemd.scope(5), systemd 253), and goes with the scope. The counter of the cgroup
// above does not say whose kill it was. And what would keep the scope is a process in
// it, one for each container.
func loggedKill(group string, pid int) bool {
	fd, err := unix.Open(kernelLog, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false // a container's /dev, or no CAP_SYSLOG: what was counted is what is known
	}
	defer unix.Close(fd)
	if !initialPIDs() {
		pid = 0 // the log has other numbers
	}
	var record [8192]byte // CONSOLE_EXT_LOG_MAX
	for range logBound {
		switch n, err := unix.Read(fd, record[:]); {
		case err == unix.EPIPE || err == unix.EINTR: // it was overwritten
		case err != nil || n == 0:
			return false
		case killRecord(string(record[:n]), group, pid):
			return true
		}
	}
	return false
}

// killRecord tells whether a record of the kernel's log is of a kill in the cgroup
// whose last name is group, or in one below it, or of process pid, if that is not 0:
//
//	3,844,83725,-;oom-kill:constraint=…,oom_memcg=PATH,task_memcg=PATH,task=NAME,pid=PID,uid=0
//	3,845,83731,-;Memory cgroup out of memory: Killed process PID (NAME) total-vm:…
//
// The kernel leaves the first one out when it kills often: dump_oom_victim and
// __oom_kill_process of mm/oom_kill.c.
func killRecord(record, group string, pid int) bool {
	head, text, ok := strings.Cut(record, ";")
	level, _, _ := strings.Cut(head, ",")
	if n, err := strconv.Atoi(level); !ok || err != nil || n >= 8 { // a facility: some program has written it
		return false
	}
	text, _, _ = strings.Cut(text, "\n")
	if _, path, ok := strings.Cut(text, ",task_memcg="); ok {
		path, _, _ = strings.Cut(path, ",task=")
		return strings.Contains(path+"/", "/"+group+"/")
	}
	_, victim, ok := strings.Cut(text, "ut of memory: Killed process ")
	victim, _, _ = strings.Cut(victim, " ")
	return ok && pid != 0 && victim == strconv.Itoa(pid)
}

// initialPIDs tells whether our process IDs are those of the kernel's log.
func initialPIDs() bool {
	ns, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && ns == "pid:[4026531836]" // PROC_PID_INIT_INO, include/linux/proc_ns.h
}
