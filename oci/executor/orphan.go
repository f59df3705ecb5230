package executor

import (
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// The executor is a child subreaper: processes whose parent in a container is gone
// become its children, if the container has no PID namespace of its own. They must
// be reaped, but not by wait(-1), which would also take the children that
// libcontainer and watch wait for.

// orphanAge is how long a zombie that nobody is known to wait for is left alone while
// a process is being started: it may be that, or a helper, which is reaped at once. A
// machine may stand still for seconds, and with a start's zombie goes an exit code.
const orphanAge = 30 * time.Second

// begins notes that processes are started and waited for that are not known yet, until
// begun is called: when they are known, or have been reaped.
func (x *Executor) begins() (begun func()) {
	x.starting.Add(1)
	return func() { x.starting.Add(-1) }
}

// reapOrphans runs for as long as the executor does.
func (x *Executor) reapOrphans() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	defer signal.Stop(signals)
	suspect, since := 0, time.Time{}
	var again <-chan time.Time
	for {
		select {
		case <-signals:
		case <-again:
		case <-x.quit:
			return
		}
		again = nil
		for {
			pid := peek()
			if pid == 0 {
				break
			}
			if pid != suspect {
				suspect, since = pid, time.Now()
			}
			if !x.orphan(pid, time.Since(since)) {
				again = time.After(50 * time.Millisecond)
				break
			}
			x.gate.enter()
			unix.Wait4(pid, nil, unix.WNOHANG, nil)
			x.gate.leave()
		}
	}
}

// orphan tells whether a zombie may be reaped.
func (x *Executor) orphan(pid int, age time.Duration) bool {
	x.mu.Lock()
	_, known := x.known[pid]
	x.mu.Unlock()
	return !known && (x.starting.Load() == 0 && age > 100*time.Millisecond || age > orphanAge)
}

// peek returns a child that has ended, without reaping it, or 0.
func peek() int {
	info, err := waitid(unix.P_ALL, 0, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT)
	if err != nil {
		return 0
	}
	return int(info.pid)
}
