package proc

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/procstat"
	"github.com/crisp-cri/crisp/oci/executor/seal"
)

// A Target is a set of processes that are to end. Which they are is looked up time and again, since
// they fork until they are killed.
type Target struct {
	what     string
	list     func() ([]int, error)
	kill     func() error  // nil = SIGKILL each in the list
	patience time.Duration // 0 = Patience
	find     func(tree)    // replaces list and kill: all that it adds are stopped before any is killed
}

// Patience bounds how long killed processes may take to exit. One that does not is in
// uninterruptible sleep.
const Patience = 2 * time.Second

// End kills the processes of a target until none is left. The error is fault.Unavailable if some do
// not exit in time. Of a target that is stopped first it does not wait for the exits.
func End(t Target) error {
	if t.find != nil {
		return endTrees(t.what, t.find)
	}
	deadline := time.Now().Add(cmp.Or(t.patience, Patience))
	for pause := backoff.New(time.Millisecond, 50*time.Millisecond); ; time.Sleep(pause.Next()) {
		if time.Now().After(deadline) {
			pids, err := t.list()
			if err != nil || len(pids) == 0 {
				return err
			}
			return fault.Unavailable.Errorf("%d %s, process %d first, do not end when killed", len(pids), t.what, pids[0])
		}
		if pids, err := t.Kill(); err != nil || len(pids) == 0 {
			return err
		}
	}
}

// Kill is one attempt of End: it returns the processes that it has found.
func (t Target) Kill() (found []int, err error) {
	if found, err = t.list(); err != nil || len(found) == 0 {
		return nil, err
	}
	if t.kill != nil {
		return found, t.kill()
	}
	return found, signalEach(t.list, unix.SIGKILL)
}

// InCgroup is every process of the cgroup.
func InCgroup(paths map[string]string) Target {
	return Target{what: "processes", list: func() ([]int, error) { return Members(paths) }, kill: func() error { return SignalAll(paths, unix.SIGKILL) }}
}

// Rest is every process of a container that shares a PID namespace, whose init is alive. Without
// cgroups (kernel.NoCgroups) it is what has the mount namespace of the init: a process that has left that
// ends with its PID namespace.
func Rest(init int, paths map[string]string) Target {
	own := namespace(init, "mnt")
	if !kernel.NoCgroups() || own == "" || own == namespace(os.Getpid(), "mnt") {
		return InCgroup(paths)
	}
	return Target{what: "processes", list: those(everyone, func(pid int) bool {
		stat, err := procstat.Read(pid)
		return err == nil && !stat.Ended() && namespace(pid, "mnt") == own
	})}
}

// Started is a process by its PID and the time at which it started, whoever its parent is.
func Started(pid int, at uint64) Target {
	is := func(pid int) bool {
		stat, err := procstat.Read(pid)
		return err == nil && stat.StartTime == at && !stat.Ended()
	}
	return Target{what: "processes", list: those(func() []int { return []int{pid} }, is)}
}

// those lists the processes in a list for which is returns true.
func those(list func() []int, is func(pid int) bool) func() ([]int, error) {
	return func() ([]int, error) {
		return slices.DeleteFunc(list(), func(pid int) bool { return !is(pid) }), nil
	}
}

// Program is the processes of that name that work in dir or below, even those of a dead executor.
func Program(name, dir string) Target {
	is := func(pid int) bool {
		cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
		if err != nil || cwd != dir && !strings.HasPrefix(cwd, dir+"/") {
			return false
		}
		stat, err := procstat.Read(pid)
		return err == nil && stat.Name == name && !stat.Ended()
	}
	return Target{what: "processes of " + name + " in " + dir, list: those(everyone, is), patience: 5 * time.Second}
}

// everyone returns the PIDs of all processes.
func everyone() (pids []int) {
	procs, _ := os.ReadDir("/proc")
	for _, p := range procs {
		if pid, err := strconv.Atoi(p.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Child is a child of this process by its PID, with its descendants.
func Child(pid int) Target {
	return Target{what: "processes", find: func(t tree) { t.add(pid, func() bool { return isChild(pid, os.Getpid()) }) }}
}

// isChild reports whether a process is a child of parent that has not ended.
func isChild(pid, parent int) bool {
	stat, err := procstat.Read(pid)
	return err == nil && stat.Parent == parent && !stat.Ended()
}

// Session is what the leader of a session has started, as far as it is in the cgroup: its
// descendants, and those whose parent has ended. The leader itself is only stopped, so that it
// keeps its PID, if it has not ended.
func Session(leader *Process, paths map[string]string) Target {
	return Target{what: "processes of the exec", find: func(t tree) {
		if leader.Signal(unix.SIGSTOP) == nil && leader.Exists() {
			t.addChildren(leader.PID)
			t.addSession(leader.PID, paths)
		} else {
			t.addRest(leader.PID, paths)
		}
	}}
}

// Orphans is what is left in the cgroup of the session of a leader that has been reaped.
func Orphans(leader int, paths map[string]string) Target {
	return Target{what: "processes of the exec", find: func(t tree) { t.addRest(leader, paths) }}
}

// Foreign is the processes of a container that come neither from its init nor from us: execs of an
// earlier executor, which have no cgroups of their own. Their first processes are in the container's
// PID namespace, and the parents of those are not. The bootstrap processes of execs that were still
// being made are in none of the container's namespaces yet. root is libcontainer's state directory.
func Foreign(init *Process, paths map[string]string, root string) Target {
	own := pidNamespace(init.PID)
	foreign := func(pid int) bool {
		stat, err := procstat.Read(pid)
		if err != nil || stat.Ended() || pid == init.PID {
			return false
		}
		return pidNamespace(pid) == own && (stat.Parent == 0 || pidNamespace(stat.Parent) != own) || isStray(pid, root)
	}
	leaders := make(map[int]bool)
	return Target{what: "processes of the exec", find: func(t tree) {
		if own == "" || own == pidNamespace(os.Getpid()) {
			return
		}
		pids, _ := Members(paths)
		for _, pid := range pids {
			if pid > 0 && foreign(pid) {
				leaders[pid] = true
				t.add(pid, func() bool { return foreign(pid) })
			}
		}
		for pid := range leaders {
			t.addSession(pid, paths)
		}
	}}
}

// OwnPIDs reports whether a process is in another PID namespace than we.
func OwnPIDs(pid int) bool { return pidNamespace(pid) != pidNamespace(os.Getpid()) }

// endTrees kills what find adds to a tree until it finds nothing that lives. All that it finds are
// stopped first: they could fork as fast as they are killed.
func endTrees(what string, find func(tree)) error {
	killed := make(map[int]bool) // and so cannot fork, even in uninterruptible sleep
	for deadline := time.Now().Add(Patience); ; {
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
		found.kill(found)
		switch {
		case fresh == 0:
			return nil
		case time.Now().After(deadline):
			return fault.Unavailable.Errorf("%d %s, process %d first, were still found", fresh, what, pids[0])
		}
	}
}

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

// addChildren adds the descendants of a process, and reports whether there was room for all children.
func (t tree) addChildren(pid int) (whole bool) {
	whole = true
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		for _, child := range procstat.PIDs(fmt.Sprintf("/proc/%d/task/%s/children", pid, task.Name())) {
			t.add(child, func() bool { return isChild(child, pid) })
			_, found := t[child]
			whole = whole && (found || len(t) < maxTree)
		}
	}
	return whole
}

// stopPatience bounds how long settle waits for processes that run or could, and sleepPatience for
// those that are in uninterruptible sleep, maybe for ever.
const (
	stopPatience  = 200 * time.Millisecond
	sleepPatience = 30 * time.Millisecond
)

// settle waits until the processes of the tree have stopped, and adds children that they were just
// forking: a process has stopped only some time after the signal was sent. It returns those of whose children
// none can be missing; if patient, none in uninterruptible sleep, which may not end before they are killed.
func (t tree) settle(patient bool) (whole tree) {
	whole = maps.Clone(t)
	began := time.Now()
	for pid := range whole {
		for pause := backoff.New(50*time.Microsecond, 2*time.Millisecond); ; time.Sleep(pause.Next()) {
			stat, err := procstat.Read(pid)
			if err != nil || stat.Ended() || stat.Exiting() || stat.State == 'T' || stat.State == 't' {
				break
			}
			if took := time.Since(began); took > stopPatience || stat.State == 'D' && took > sleepPatience {
				if stat.State == 'R' || stat.State == 'D' && patient { // it may wait for a processor
					delete(whole, pid)
				}
				break
			}
		}
		if !t.addChildren(pid) {
			delete(whole, pid)
		}
	}
	return whole
}

// kill kills those processes of the tree that are whole, and forgets all. A child of another would be lost:
// that stays stopped until the next try.
func (t tree) kill(whole tree) {
	for pid, fd := range t {
		if _, is := whole[pid]; is {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // may have ended
		}
		unix.Close(fd)
	}
	clear(t)
}

// addSession adds the members of cgroups that are in the session of a process, which may have
// ended.
func (t tree) addSession(leader int, paths map[string]string) {
	pids, _ := Members(paths)
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

// addRest is addSession for a leader that has been reaped: if another process has its PID, the
// session had no members left.
func (t tree) addRest(leader int, paths map[string]string) {
	if unix.Kill(leader, 0) == unix.ESRCH {
		t.addSession(leader, paths)
	}
}

// pidNamespace names the PID namespace of a process; "" if it has ended.
func pidNamespace(pid int) string { return namespace(pid, "pid") }

// namespace returns the name of a process's namespace, "" for a process that has ended.
func namespace(pid int, kind string) string {
	name, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
	return name
}

// Strays. libcontainer starts a process with bootstrap processes (nsexec), which begin in the
// executor's own cgroup; on cgroup v1, those of an exec join the container's only at the end.
// When the executor is killed, their pipes are closed, and they exit. But one that a container
// has stopped, as it can stop an exec that it sees, waits for ever, and so does its parent,
// which waits for it: they are in no container's cgroup.

// Strays is the bootstrap processes in our own cgroup that no executor waits for. root is
// libcontainer's state directory.
func Strays(root string) Target {
	return Target{what: "strays", list: those(neighbours, func(pid int) bool { return isStray(pid, root) })}
}

// neighbours returns the processes of our own cgroup that are in a PID namespace we see.
func neighbours() []int {
	own := OwnCgroups() // in the hierarchy in which the processes of containers are found
	return procstat.PIDs(filepath.Join(cmp.Or(own["freezer"], own["pids"], own["memory"], own["devices"], own[""]), "cgroup.procs"))
}

// isStray reports whether a process of our own cgroup is a bootstrap process that no executor
// waits for.
func isStray(pid int, root string) bool {
	if !runsOurProgram(pid, root) || !isBootstrap(pid) {
		return false
	}
	stat, err := procstat.Read(pid)
	// An instance without its own cgroup, such as a test's, may share ours.
	return err == nil && stat.Parent > 0 && (!runsOurProgram(stat.Parent, root) || isBootstrap(stat.Parent))
}

// runsOurProgram reports whether a process runs from a copy made by Seal, or from libcontainer's
// copy of that.
func runsOurProgram(pid int, root string) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	name := strings.TrimSuffix(exe, " (deleted)")
	return err == nil && (name == "/memfd:"+seal.Name || name == "/"+seal.Name || strings.HasPrefix(name, root+"/"))
}

// isBootstrap reports whether a process of our program is a bootstrap process.
func isBootstrap(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	args := strings.Split(string(line), "\x00")
	return err == nil && len(args) > 1 && filepath.Base(args[0]) == filepath.Base(os.Args[0]) && args[1] == "init"
}

// Hooks that run outside of the container, and engines, are in the executor's own cgroup with
// everything that they start. One that hangs outlives a killed executor, and no cgroup of the
// container leads to it. So each has a variable in its environment that names its container, and
// its children inherit that.
//
// The variable is checked only when a container is removed that this executor has not started:
// a process that a hook intentionally leaves running belongs to the container, and lives as long.

// ownerEnv names that variable.
const ownerEnv = "_CRISP_CONTAINER"

// Mark returns the variable for a container; it also names the instance of crisp, which may
// share its cgroup with another.
func Mark(root, id string) string { return ownerEnv + "=" + filepath.Join(root, id) }

// Marked is what an earlier executor's hooks and engines have left running for a container: the
// processes of our own cgroup that have mark in their environment. A process that has ended has
// none.
func Marked(mark string) Target {
	return Target{what: "processes of hooks", list: those(neighbours, func(pid int) bool {
		env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		return slices.Contains(strings.Split(string(env), "\x00"), mark)
	})}
}
