package executor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/procstat"
)

// On cgroup v2 an exec is in its container's own cgroup: a program that looks for its limits reads
// the files of its cgroup, and monitors look for the container's name in it. So what an exec has
// started is found otherwise: its descendants as children of children, and those whose parent has
// ended by their session, which the exec leads. Only a daemon escapes: a process that has begun a
// session of its own, and whose parent has ended.

// A tree is a set of stopped processes, by PID, as pidfds.
type tree map[int]int

// add stops a process and adds it, so that it cannot fork while its children are listed; then it
// adds those. is reports whether the PID still belongs to the process that was meant.
func (t tree) add(pid int, is func() bool) {
	if _, found := t[pid]; found || len(t) >= maxTree {
		return
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	// The PID may have been reused before the pidfd was opened. It cannot be any more if the process
	// is not reaped after the second look.
	if !is() || unix.PidfdSendSignal(fd, unix.SIGSTOP, nil, 0) != nil {
		unix.Close(fd)
		return
	}
	t[pid] = fd
	t.addChildren(pid)
}

// addChildren adds the descendants of a process.
func (t tree) addChildren(pid int) {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		list := fmt.Sprintf("/proc/%d/task/%s/children", pid, task.Name())
		for _, child := range procstat.PIDs(list) {
			t.add(child, func() bool { return slices.Contains(procstat.PIDs(list), child) })
		}
	}
}

// stopPatience bounds how long settle waits for processes that run or could, and sleepPatience for
// those that are in uninterruptible sleep, maybe for ever.
const (
	stopPatience  = 200 * time.Millisecond
	sleepPatience = 30 * time.Millisecond
)

// settle waits until the processes of the tree have stopped, and adds children that they were just
// forking: a process has stopped only some time after the signal was sent.
func (t tree) settle() {
	began := time.Now()
	for pid := range maps.Clone(t) {
		for pause := backoff.New(50*time.Microsecond, 2*time.Millisecond); ; time.Sleep(pause.Next()) {
			stat, err := procstat.Read(pid)
			if err != nil || stat.Ended() || stat.Exiting() || stat.State == 'T' || stat.State == 't' {
				break
			}
			if took := time.Since(began); took > stopPatience || stat.State == 'D' && took > sleepPatience {
				break
			}
		}
		t.addChildren(pid)
	}
}

// kill kills the processes of the tree and forgets them.
func (t tree) kill() {
	for _, fd := range t {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // may have ended
		unix.Close(fd)
	}
	clear(t)
}

// endTrees kills what find adds to a tree until it finds nothing that lives. All that it finds are
// stopped first: they could fork as fast as they are killed.
func endTrees(find func(tree)) error {
	killed := make(map[int]bool) // and so cannot fork, even in uninterruptible sleep
	for deadline := time.Now().Add(endPatience); ; {
		found := make(tree)
		for more := true; more && time.Now().Before(deadline); {
			before := len(found)
			find(found)
			more = len(found) > before && len(found) < maxTree
		}
		fresh := 0
		for pid := range found {
			if !killed[pid] {
				fresh++
				killed[pid] = true
			}
		}
		pids := slices.Collect(maps.Keys(found))
		found.kill()
		switch {
		case fresh == 0:
			return nil
		case time.Now().After(deadline):
			return fault.Unavailable.Errorf("%d processes of the exec, process %d first, were still found", fresh, pids[0])
		}
	}
}

// addSession adds the members of cgroups that are in the session of a process, which may have
// ended.
func (t tree) addSession(leader int, paths map[string]string) {
	pids, _ := members(paths)
	in := func(pid int) bool {
		stat, err := procstat.Read(pid)
		return err == nil && stat.Session == leader && !stat.Ended()
	}
	for _, pid := range pids {
		if pid > 0 && in(pid) {
			t.add(pid, func() bool { return in(pid) })
		}
	}
}

// endTree kills an exec without a cgroup of its own.
func (e *execution) endTree() error {
	pid := e.proc.pid
	find := func(t tree) {
		if e.proc.signal(unix.SIGSTOP) == nil && e.proc.exists() {
			t.addChildren(pid)
			t.addSession(pid, e.c.ref.Cgroups)
		} else {
			t.addRest(pid, e.c.ref.Cgroups)
		}
	}
	err := endTrees(find)
	if kerr := e.proc.signal(unix.SIGKILL); kerr != nil {
		return kerr
	}
	return errors.Join(err, endTrees(find)) // what it was forking when it was stopped
}

// addRest is addSession for a leader that has been reaped: if another process has its PID, the
// session had no members left.
func (t tree) addRest(leader int, paths map[string]string) {
	if unix.Kill(leader, 0) == unix.ESRCH {
		t.addSession(leader, paths)
	}
}

// groupsExecs reports whether execs in c have cgroups below the container's: on cgroup v1 only in
// freezer, where nobody looks for limits. On cgroup v2 only a container in the host's PID namespace
// has them, where what an executor that was killed has left could not be told from other processes.
func (c *container) groupsExecs() bool {
	return !cgroups.IsCgroup2UnifiedMode() || pidNamespace(c.proc.pid) == pidNamespace(os.Getpid())
}

// pidNamespace names the PID namespace of a process; "" if it has ended.
func pidNamespace(pid int) string {
	name, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	return name
}

// endForeignTrees is endForeign for execs without cgroups of their own. Their first processes are in
// the container's PID namespace, and the parents of those are not. The bootstrap processes of execs
// that were still being made are in none of the container's namespaces yet.
func (c *container) endForeignTrees(root string) error {
	own := pidNamespace(c.proc.pid)
	if own == "" || own == pidNamespace(os.Getpid()) {
		return nil
	}
	foreign := func(pid int) bool {
		stat, err := procstat.Read(pid)
		if err != nil || stat.Ended() || pid == c.proc.pid {
			return false
		}
		return pidNamespace(pid) == own && (stat.Parent == 0 || pidNamespace(stat.Parent) != own) || isStray(pid, root)
	}
	leaders := make(map[int]bool)
	return endTrees(func(t tree) {
		pids, _ := members(c.ref.Cgroups)
		for _, pid := range pids {
			if pid > 0 && foreign(pid) {
				leaders[pid] = true
				t.add(pid, func() bool { return foreign(pid) })
			}
		}
		for pid := range leaders {
			t.addSession(pid, c.ref.Cgroups)
		}
	})
}
