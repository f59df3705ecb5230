package executor

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opencontainers/cgroups"

	"github.com/crisp-cri/crisp/oci/wire"
)

// An oomCounter reads how many processes of a container the OOM killer has killed, through a
// descriptor that stays open. Reading fails once the cgroup is gone, which can be right after
// its last process: systemd removes empty scopes. The kernel's notification may come too late
// for the counter, because it reports changes at most every 10 ms (CGROUP_FILE_NOTIFY_MIN_INTV).
// Then the kernel's log is searched, unless a last read was in time.
type oomCounter struct {
	victim
	events   *os.File // memory.events (v2) or memory.oom_control (v1, Linux 4.13); nil: the cgroup was already gone
	notify   *os.File // v1: the eventfd that an OOM signals; v2: nil, events itself is polled
	seen     atomic.Int64
	reported atomic.Int64
	key      int32 // in the oomWatch

	settle sync.Once
	last   atomic.Bool // seen will not change any more
}

// newOOMCounter returns nil if the container has no memory cgroup.
func newOOMCounter(ref wire.RunReply) (*oomCounter, error) {
	paths := ref.Cgroups
	dir, file := paths[""], "memory.events"
	v2 := cgroups.IsCgroup2UnifiedMode()
	if !v2 {
		dir, file = paths["memory"], "memory.oom_control"
	}
	if dir == "" {
		return nil, nil
	}
	o := &oomCounter{victim: newVictim(dir, ref.Pid, ref.StartTime)}
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
		o.close()
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

// count returns the number of kills so far.
func (o *oomCounter) count() int64 {
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
				o.learn(1)
			}
			o.last.Store(true)
		})
		return o.seen.Load()
	}
	for line := range bytes.Lines(buf[:n]) {
		if v, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("oom_kill ")); ok {
			if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
				o.learn(n)
			}
		}
	}
	return o.seen.Load()
}

// learn raises seen: of two concurrent readers, the later may have read earlier.
func (o *oomCounter) learn(n int64) {
	for old := o.seen.Load(); n > old && !o.seen.CompareAndSwap(old, n); old = o.seen.Load() {
	}
}

// lost reports whether the OOM killer killed a process of the container. It is false for a nil
// counter.
func (o *oomCounter) lost() bool { return o != nil && o.count() > 0 }

// lostAll is lost when no process of the container is left, so that this is the last read of the
// counter.
func (o *oomCounter) lostAll() bool {
	if o == nil {
		return false
	}
	lost := o.lost()
	o.last.Store(true)
	return lost
}

func (o *oomCounter) close() {
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

// An oomWatch waits for the memory events of all containers with one goroutine: in its own
// epoll, which Go's poller waits for, because Go does not request EPOLLPRI.
type oomWatch struct {
	log    *slog.Logger
	epoll  *os.File
	happen func(id string, kills int64)

	mu       sync.Mutex
	last     int32
	counters map[int32]watched // guarded by mu
}

type watched struct {
	id string
	*oomCounter
}

func newOOMWatch(log *slog.Logger, happen func(id string, kills int64)) (*oomWatch, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	f, err := polled(fd, "epoll")
	if err != nil {
		return nil, err
	}
	w := &oomWatch{log: log, epoll: f, happen: happen, counters: make(map[int32]watched)}
	go w.loop()
	return w, nil
}

// add starts to watch o.
func (w *oomWatch) add(id string, o *oomCounter) error {
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

// flush stops watching o, which may be nil, after a last check.
func (w *oomWatch) flush(o *oomCounter) {
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

func (w *oomWatch) ctl(op int, f *os.File, e *unix.EpollEvent) error {
	return withFD(w.epoll, func(ep int) error {
		return withFD(f, func(fd int) error { return unix.EpollCtl(ep, op, fd, e) })
	})
}

func (w *oomWatch) loop() {
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
				returns(w.log, "oom", "", func() { w.woken(e.Fd) })
			}
		}
	})
}

// check reports new kills; done is set if there were any, or c is gone.
func (w *oomWatch) check(key int32) (done bool) {
	w.mu.Lock()
	c, ok := w.counters[key]
	w.mu.Unlock()
	if !ok {
		return true
	}
	n := c.count()
	if n <= c.reported.Swap(n) {
		return false
	}
	w.happen(c.id, n)
	return true
}

// woken handles an event of the kernel. On v1 it comes before the kill is counted, or even done.
func (w *oomWatch) woken(key int32) {
	w.mu.Lock()
	c := w.counters[key]
	w.mu.Unlock()
	if c.oomCounter != nil && c.notify != nil {
		var n [8]byte
		withFD(c.notify, func(fd int) error { _, err := unix.Read(fd, n[:]); return err })
	}
	var again func(after time.Duration)
	again = func(after time.Duration) {
		done := true
		returns(w.log, "oom", "", func() { done = w.check(key) })
		if !done && after < 2*time.Second {
			time.AfterFunc(after, func() { again(4 * after) })
		}
	}
	again(5 * time.Millisecond)
}
