package executor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opencontainers/cgroups"
)

// An oomCounter reads how many processes of a container the OOM killer has taken,
// through a descriptor that stays open: by name, the file may be gone the moment
// the last process is, because systemd removes empty scopes. What was read last
// is remembered for the case that the cgroup went first.
type oomCounter struct {
	events *os.File // memory.events (v2) or memory.oom_control (v1, Linux 4.13)
	notify *os.File // v1: the eventfd that an OOM wakes; v2: nil, events itself is polled
	seen   atomic.Int64
	told   atomic.Int64
	key    int32 // in the oomWatch
}

// newOOMCounter returns nil if the container has no memory cgroup.
func newOOMCounter(paths map[string]string) (*oomCounter, error) {
	if cgroups.IsCgroup2UnifiedMode() {
		f, err := openRaw(filepath.Join(paths[""], "memory.events"))
		if os.IsNotExist(err) {
			return nil, nil // the controller is not enabled
		}
		if err != nil {
			return nil, err
		}
		return &oomCounter{events: f}, nil
	}
	dir := paths["memory"]
	if dir == "" {
		return nil, nil
	}
	f, err := openRaw(filepath.Join(dir, "memory.oom_control"))
	if err != nil {
		return nil, err
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		f.Close()
		return nil, os.NewSyscallError("eventfd2", err)
	}
	o := &oomCounter{events: f, notify: os.NewFile(uintptr(fd), "eventfd")}
	// Documentation/admin-guide/cgroup-v1/memory.rst, section 10.
	line := fmt.Sprintf("%d %d", fd, f.Fd())
	if err := os.WriteFile(filepath.Join(dir, "cgroup.event_control"), []byte(line), 0); err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

// openRaw opens a file without the poller, which would take kernfs's events away.
func openRaw(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// count reads the number of kills so far.
func (o *oomCounter) count() int64 {
	var buf [512]byte
	n, err := o.events.ReadAt(buf[:], 0)
	if n == 0 && err != nil {
		return o.seen.Load() // the cgroup has gone
	}
	for line := range bytes.Lines(buf[:n]) {
		if v, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("oom_kill ")); ok {
			if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
				o.seen.Store(n)
			}
		}
	}
	return o.seen.Load()
}

// killed tells whether the container has lost a process. A nil counter knows of
// none.
func (o *oomCounter) killed() bool { return o != nil && o.count() > 0 }

func (o *oomCounter) close() {
	if o == nil {
		return
	}
	o.events.Close()
	if o.notify != nil {
		o.notify.Close()
	}
}

// An oomWatch waits for the memory events of all containers with one goroutine:
// in an epoll of its own, because Go's poller asks for no EPOLLPRI, which itself
// is waited for in Go's poller.
type oomWatch struct {
	epoll  *os.File
	happen func(id string)

	mu       sync.Mutex
	last     int32
	counters map[int32]watched // guarded by mu
}

type watched struct {
	id string
	*oomCounter
}

func newOOMWatch(happen func(id string)) (*oomWatch, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	f, err := polled(fd, "epoll")
	if err != nil {
		return nil, err
	}
	w := &oomWatch{epoll: f, happen: happen, counters: make(map[int32]watched)}
	go w.loop()
	return w, nil
}

// add begins to watch o.
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
	return w.ctl(unix.EPOLL_CTL_ADD, f, &unix.EpollEvent{Events: events | unix.EPOLLET, Fd: o.key})
}

// flush ends the watch of o, which may be nil, after a last look.
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
	w.ctl(unix.EPOLL_CTL_DEL, f, nil)
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
				w.woken(e.Fd)
			}
		}
	})
}

// check tells of the kills that have not been told.
func (w *oomWatch) check(key int32) (told bool) {
	w.mu.Lock()
	c, ok := w.counters[key]
	w.mu.Unlock()
	if !ok {
		return true
	}
	n := c.count()
	if n <= c.told.Swap(n) {
		return false
	}
	w.happen(c.id)
	return true
}

// woken takes an event of the kernel's. In v1 it comes before the kill is counted,
// or even done.
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
		if !w.check(key) && after < 2*time.Second {
			time.AfterFunc(after, func() { again(4 * after) })
		}
	}
	again(5 * time.Millisecond)
}
