package proc

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/procstat"
	"github.com/crisp-cri/crisp/oci/executor/gate"
)

// The executor is a child subreaper: processes in a container whose parent is gone become its
// children, if the container has no PID namespace of its own. They must be reaped, but not by
// wait(-1), which would also reap the children that libcontainer and watch wait for.
//
// The kernel makes them children of the main thread; processes that we start are children of the
// threads that forked them. The main thread forks nothing (see Serve). After an upgrade it has
// all children; by then those that are waited for are known. An exec can give its own children to
// the thread that forked it (CLONE_PARENT): those are recognized by their age.

const (
	// orphanAge is the delay before a zombie is reaped. A child that is still waited for becomes the
	// main thread's when the thread that forked it exits; its waiter reaps it at once.
	orphanAge = 100 * time.Millisecond
	// doubtAge is orphanAge for the children of other threads, and for all while an engine
	// creates a process: its parent, the engine, exits before we know it. A machine may stall
	// for seconds, and reaping such a zombie would lose an exit code.
	doubtAge = 30 * time.Second
	// orphanPause is the shortest interval between checks of the main thread's children,
	// doubtPause that for children of other threads.
	orphanPause = 50 * time.Millisecond
	doubtPause  = time.Second
)

// A Reaper reaps the orphans among the executor's children.
type Reaper struct {
	gate     *gate.Gate
	creating atomic.Int32 // see ExpectChild

	mu    sync.Mutex
	known map[int]struct{} // pids that are waited for; guarded by mu
}

func NewReaper(g *gate.Gate) *Reaper { return &Reaper{gate: g, known: make(map[int]struct{})} }

// Know protects a child from being reaped as an orphan, until forget. It reports whether the child is
// new.
func (r *Reaper) Know(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.known[pid]
	r.known[pid] = struct{}{}
	return !known
}

func (r *Reaper) Forget(pid int) {
	r.mu.Lock()
	delete(r.known, pid)
	r.mu.Unlock()
}

func (r *Reaper) isKnown(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.known[pid]
	return known
}

// End kills a process that could not be taken into service, and reaps it: by reap, if that is not nil.
func (r *Reaper) End(pid int, reap func()) error {
	if reap == nil {
		reap = func() { reapChild(pid) }
	}
	reaped := make(chan struct{})
	go func() {
		defer close(reaped)
		unix.Kill(pid, unix.SIGKILL) // not reaped yet
		reap()
		r.Forget(pid)
	}()
	select {
	case <-reaped:
		return nil
	case <-time.After(Patience):
		return fault.Unavailable.Errorf("process %d does not end when killed", pid)
	}
}

// ExpectChild says that an OCI runtime is about to create a process, until done is called: when
// the process is known, or has been reaped.
func (r *Reaper) ExpectChild() (done func()) {
	r.creating.Add(1)
	return func() { r.creating.Add(-1) }
}

// Loop reaps until quit is closed.
func (r *Reaper) Loop(quit <-chan struct{}) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	defer signal.Stop(signals)
	main := []string{fmt.Sprintf("/proc/self/task/%d/children", os.Getpid())}
	orphans, doubtful := make(zombies), make(zombies)
	soon, later := time.After(orphanPause), time.After(doubtPause) // there is no signal for those from before an upgrade
	for {
		select {
		case <-signals:
			if soon == nil {
				soon = time.After(orphanPause)
			}
			if later == nil {
				later = time.After(doubtPause)
			}
			continue
		case <-soon:
			age := orphanAge
			if r.creating.Load() > 0 {
				age = doubtAge
			}
			soon = nil
			if orphans = r.reapOld(orphans, main, age); len(orphans) > 0 {
				soon = time.After(orphanPause)
			}
		case <-later:
			lists, _ := filepath.Glob("/proc/self/task/*/children")
			later = nil
			if doubtful = r.reapOld(doubtful, lists, doubtAge); len(doubtful) > 0 {
				later = time.After(doubtPause)
			}
		case <-quit:
			return
		}
	}
}

// zombies records when each was first seen.
type zombies map[int]time.Time

// reapOld reaps the zombies in the lists of children that are not waited for and that were first
// seen at least age ago. It returns those that remain.
func (r *Reaper) reapOld(seen zombies, lists []string, age time.Duration) zombies {
	remain, now := make(zombies), time.Now()
	r.gate.Enter()
	defer r.gate.Leave()
	for _, list := range lists {
		for _, pid := range procstat.PIDs(list) {
			if r.isKnown(pid) || !isZombie(pid) {
				continue
			}
			since, ok := seen[pid]
			if !ok {
				since = now
			}
			if now.Sub(since) < age {
				remain[pid] = since
				continue
			}
			unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
	return remain
}

// isZombie reports whether a child has ended; it does not reap it.
func isZombie(pid int) bool {
	info, err := waitid(unix.P_PID, pid, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT)
	return err == nil && info.pid == int32(pid)
}
