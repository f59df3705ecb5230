package executor

import (
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/kernel"
)

// Moving a process between cgroups takes a lock whose first taker waits for an RCU grace period,
// about 10 ms: more than all the rest of a start. Takers in the next few milliseconds need not
// wait (cgroup_threadgroup_rwsem is a per-CPU semaphore; kernel/rcu/sync.c). The mount option
// favordynmods keeps the lock warm for good, at the cost of every fork on the machine. A warmer
// keeps it warm only while containers are being started, by moving the executor to its current
// cgroup, which takes about 20 µs when the lock is warm. So the first wait overlaps with what
// precedes libcontainer's move, or with crispd's preparations (wire.MethodWarm).
type warmer struct {
	procs *os.File // cgroup.procs of our own cgroup; nil if there is none

	mu    sync.Mutex
	until time.Time // guarded by mu
	runs  bool      // guarded by mu
}

const (
	warmFor   = 300 * time.Millisecond // after the latest start
	warmEvery = 4 * time.Millisecond   // well within the time that the kernel stays warm
)

// newWarmer opens our own cgroup in any hierarchy: the lock is the same for all.
func newWarmer() *warmer {
	for _, dir := range ownCgroups() {
		fd, err := unix.Open(filepath.Join(dir, "cgroup.procs"), unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			return &warmer{procs: os.NewFile(uintptr(fd), "cgroup.procs")}
		}
	}
	return &warmer{}
}

// ownCgroups returns the directories of our own cgroup by controller, in the hierarchies that
// are mounted completely; the key "" is v2's.
func ownCgroups() map[string]string {
	all, _ := kernel.Hierarchies()
	dirs := make(map[string]string)
	for _, h := range all {
		if h.Whole {
			for _, controller := range h.Controllers {
				dirs[controller] = h.Own()
			}
		}
	}
	return dirs
}

// warm keeps the lock warm for a while. It does not wait.
func (w *warmer) warm() {
	if w.procs == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.until = time.Now().Add(warmFor)
	if !w.runs {
		w.runs = true
		go w.loop()
	}
}

func (w *warmer) loop() {
	tick := time.NewTicker(warmEvery)
	defer tick.Stop()
	for {
		_, err := w.procs.Write([]byte("0"))
		w.mu.Lock()
		if err != nil || time.Now().After(w.until) {
			w.runs = false
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		<-tick.C
	}
}
