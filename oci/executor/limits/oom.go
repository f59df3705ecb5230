package limits

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opencontainers/cgroups"

	"github.com/crisp-cri/crisp/oci/executor/gate"
	"github.com/crisp-cri/crisp/oci/executor/poll"
	"github.com/crisp-cri/crisp/oci/wire"
)

// An OOMCounter reads how many processes of a container the OOM killer has killed, through a
// descriptor that stays open. Reading fails once the cgroup is gone, which can be right after
// its last process: systemd removes empty scopes. The kernel's notification may come too late
// for the counter, because it reports changes at most every 10 ms (CGROUP_FILE_NOTIFY_MIN_INTV).
// Then the kernel's log is searched, unless a last read was in time.
type OOMCounter struct {
	victim
	events   *os.File // memory.events (v2) or memory.oom_control (v1, Linux 4.13); nil: the cgroup was already gone
	notify   *os.File // v1: the eventfd that an OOM signals; v2: nil, events itself is polled
	seen     atomic.Int64
	at       atomic.Pointer[time.Time] // when seen was last raised; nil if not under this executor
	reported atomic.Int64
	key      int32 // in the OOMWatch

	settle sync.Once
	last   atomic.Bool // seen will not change any more
}

// NewOOMCounter returns nil if the container has no memory cgroup.
func NewOOMCounter(ref wire.RunReply) (*OOMCounter, error) {
	paths := ref.Cgroups
	dir, file := paths[""], "memory.events"
	v2 := cgroups.IsCgroup2UnifiedMode()
	if !v2 {
		dir, file = paths["memory"], "memory.oom_control"
	}
	if dir == "" {
		return nil, nil
	}
	o := &OOMCounter{victim: newVictim(dir, ref.Pid, ref.StartTime)}
	f, err := openRaw(filepath.Join(dir, file))
	if os.IsNotExist(err) {
		if _, err := os.Stat(dir); err == nil {
			return nil, nil // the controller is not enabled
		}
		return o, nil
	}
	if err != nil {
		return nil, err
	}
	if o.events = f; v2 {
		return o, nil
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		f.Close()
		return nil, os.NewSyscallError("eventfd2", err)
	}
	o.notify = os.NewFile(uintptr(fd), "eventfd")
	// Documentation/admin-guide/cgroup-v1/memory.rst, section 10.
	line := fmt.Sprintf("%d %d", fd, f.Fd())
	if err := os.WriteFile(filepath.Join(dir, "cgroup.event_control"), []byte(line), 0); err != nil {
		o.Close()
		return nil, err
	}
	return o, nil
}

// openRaw opens a file without the poller, which would consume kernfs's events.
func openRaw(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Count returns the number of kills so far.
func (o *OOMCounter) Count() int64 {
	if o.last.Load() {
		return o.seen.Load()
	}
	var buf [512]byte
	n := 0
	if o.events != nil {
		n, _ = o.events.ReadAt(buf[:], 0)
	}
	if n == 0 { // ENODEV: the cgroup is gone
		o.settle.Do(func() {
			if o.seen.Load() == 0 && o.logged() {
				o.Learn(1, time.Now())
			}
			o.last.Store(true)
		})
		return o.seen.Load()
	}
	for line := range bytes.Lines(buf[:n]) {
		if v, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("oom_kill ")); ok {
			if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
				o.Learn(n, time.Now())
			}
		}
	}
	return o.seen.Load()
}

// Learn raises the number of kills that were seen: of two concurrent readers, the later may have
// read earlier.
func (o *OOMCounter) Learn(n int64, at time.Time) {
	for old := o.seen.Load(); n > old; old = o.seen.Load() {
		if o.seen.CompareAndSwap(old, n) {
			o.at.Store(&at)
		}
	}
}

// Resume begins after the kills that an earlier executor has reported.
func (o *OOMCounter) Resume(kills int64) {
	o.seen.Store(kills)
	o.reported.Store(kills)
	o.at.Store(nil)
}

// Lost reports whether the OOM killer killed a process of the container. It is false for a nil
// counter.
func (o *OOMCounter) Lost() bool { return o != nil && o.Count() > 0 }

// LostAll is lost when no process of the container is left, so that this is the last read of the
// counter.
func (o *OOMCounter) LostAll() bool {
	if o == nil {
		return false
	}
	lost := o.Lost()
	o.last.Store(true)
	return lost
}

// LostSince reports whether the last kill was seen after t.
func (o *OOMCounter) LostSince(t time.Time) bool {
	at := o.at.Load()
	return at != nil && at.After(t)
}

func (o *OOMCounter) Close() {
	if o == nil {
		return
	}
	if o.events != nil {
		o.events.Close()
	}
	if o.notify != nil {
		o.notify.Close()
	}
}

// An OOMWatch waits for the memory events of all containers with one goroutine: in its own
// epoll, which Go's poller waits for, because Go does not request EPOLLPRI.
type OOMWatch struct {
	log    *slog.Logger
	epoll  *os.File
	happen func(id string, kills int64)

	mu       sync.Mutex
	last     int32
	counters map[int32]watched // guarded by mu
}

type watched struct {
	id string
	*OOMCounter
}

func NewOOMWatch(log *slog.Logger, happen func(id string, kills int64)) (*OOMWatch, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	f, err := poll.File(fd, "epoll")
	if err != nil {
		return nil, err
	}
	w := &OOMWatch{log: log, epoll: f, happen: happen, counters: make(map[int32]watched)}
	go w.loop()
	return w, nil
}

// Add starts to watch o.
func (w *OOMWatch) Add(id string, o *OOMCounter) error {
	f, events := o.events, uint32(unix.EPOLLPRI)
	if o.notify != nil {
		f, events = o.notify, unix.EPOLLIN
	}
	w.mu.Lock()
	w.last++
	o.key = w.last
	w.counters[o.key] = watched{id, o}
	w.mu.Unlock()
	if f == nil {
		return nil
	}
	return w.ctl(unix.EPOLL_CTL_ADD, f, &unix.EpollEvent{Events: events | unix.EPOLLET, Fd: o.key})
}

// Flush stops watching o, which may be nil, after a last check.
func (w *OOMWatch) Flush(o *OOMCounter) {
	if o == nil {
		return
	}
	w.check(o.key)
	w.mu.Lock()
	delete(w.counters, o.key)
	w.mu.Unlock()
	f := o.events
	if o.notify != nil {
		f = o.notify
	}
	if f != nil {
		w.ctl(unix.EPOLL_CTL_DEL, f, nil)
	}
}

func (w *OOMWatch) ctl(op int, f *os.File, e *unix.EpollEvent) error {
	return poll.WithFD(w.epoll, func(ep int) error {
		return poll.WithFD(f, func(fd int) error { return unix.EpollCtl(ep, op, fd, e) })
	})
}

func (w *OOMWatch) loop() {
	raw, err := w.epoll.SyscallConn()
	if err != nil {
		return
	}
	raw.Read(func(fd uintptr) bool {
		var events [16]unix.EpollEvent
		for {
			n, err := unix.EpollWait(int(fd), events[:], 0)
			if n <= 0 && err != unix.EINTR {
				return false
			}
			for _, e := range events[:max(n, 0)] {
				gate.Recover(w.log, "oom", "", func() { w.woken(e.Fd) })
			}
		}
	})
}

// check reports new kills; done is set if there were any, or c is gone.
func (w *OOMWatch) check(key int32) (done bool) {
	w.mu.Lock()
	c, ok := w.counters[key]
	w.mu.Unlock()
	if !ok {
		return true
	}
	n := c.Count()
	if n <= c.reported.Swap(n) {
		return false
	}
	w.happen(c.id, n)
	return true
}

// woken handles an event of the kernel. On v1 it comes before the kill is counted, or even done.
func (w *OOMWatch) woken(key int32) {
	w.mu.Lock()
	c := w.counters[key]
	w.mu.Unlock()
	if c.OOMCounter != nil && c.notify != nil {
		var n [8]byte
		poll.WithFD(c.notify, func(fd int) error { _, err := unix.Read(fd, n[:]); return err })
	}
	var again func(after time.Duration)
	again = func(after time.Duration) {
		done := true
		gate.Recover(w.log, "oom", "", func() { done = w.check(key) })
		if !done && after < 2*time.Second {
			time.AfterFunc(after, func() { again(4 * after) })
		}
	}
	again(5 * time.Millisecond)
}

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
