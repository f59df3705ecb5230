package executor_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/oci/wire"
)

// A bootstrap is a bootstrap process of libcontainer, which becomes a container's process.
type bootstrap struct {
	pid     int
	pidfd   int
	stopped bool
}

// gone reports whether the process has ended and been reaped.
func (s bootstrap) gone() bool { return unix.PidfdSendSignal(s.pidfd, 0, nil, 0) == unix.ESRCH }

// cgroup returns the process's cgroup in the hierarchy that tells containers apart; "" if
// the process has ended.
func cgroup(pid int) string {
	own, _ := cgroups.ParseCgroupFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if path := own["freezer"]; path != "" {
		return path
	}
	return own[""]
}

// findBootstraps opens a pidfd of each current bootstrap process.
func (n *node) findBootstraps() (all []bootstrap) {
	n.t.Helper()
	for _, name := range descendants(strconv.Itoa(n.cmd.Process.Pid)) {
		pid, _ := strconv.Atoi(name)
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if !isBootstrapProcess(name) {
			unix.Close(fd)
			continue
		}
		n.t.Cleanup(func() { unix.Close(fd) })
		all = append(all, bootstrap{pid, fd, isStopped(name)})
	}
	return all
}

// stopped calls begin until the start that it begins is stopped half made by a container,
// and returns the bootstrap processes of that start.
func (n *node) stopped(begin func() <-chan error) (_ []bootstrap, over <-chan error) {
	n.t.Helper()
	for range 1000 {
		over := begin()
		eventually(n.t, func() bool { _, stopped := n.countBootstraps(); return stopped > 0 || len(over) > 0 }, "it is neither made nor stopped")
		if bootstraps := n.findBootstraps(); len(over) == 0 && len(bootstraps) > 0 {
			return bootstraps, over
		}
		if err := <-over; err != nil {
			n.t.Fatal(err)
		}
	}
	n.t.Fatal("no start was stopped half made")
	return nil, nil
}

// stopsOthers runs a container that stops every process that it sees.
func (n *node) stopsOthers() *box {
	n.t.Helper()
	b := n.run([]string{"print", "up", "stop-others"})
	b.says("up")
	return b
}

// beginExec begins an exec in b that exits at once.
func (b *box) beginExec() <-chan error {
	over := make(chan error, 1)
	go func() {
		files, err := b.client.Call(b.t.Context(), wire.MethodExec, wire.ExecRequest{ID: b.id, Process: process("exit", "0")}, nil)
		for _, f := range files {
			f.Close()
		}
		over <- err
	}()
	return over
}

// The executor is killed while a container keeps an exec stopped half made, which on cgroup
// v1 is not yet in the container's cgroup. The next executor ends it.
func TestCrashWhileAnExecIsStopped(t *testing.T) {
	n := start(t)
	b := n.stopsOthers()
	outside := 0
	for try := 0; try < 3 || outside < 2 && !cgroups.IsCgroup2UnifiedMode(); try++ {
		if try == 100 {
			t.Fatalf("of %d execs that were stopped, %d were outside of the container's cgroup", try, outside)
		}
		bootstraps, over := n.stopped(b.beginExec)
		own := cgroup(n.cmd.Process.Pid)
		n.crash(func() {
			<-over
			for _, s := range bootstraps {
				if cgroup(s.pid) == own {
					outside++
				}
			}
		})
		b.adopt()
		for _, s := range bootstraps {
			eventually(t, s.gone, "process %d of an exec is left", s.pid)
		}
	}
}

// An executor that shares its cgroup with another one ends none of the other's bootstrap processes.
func TestBootstrapsOfAnotherExecutor(t *testing.T) {
	n := start(t)
	b := n.stopsOthers()
	bootstraps, over := n.stopped(b.beginExec)
	other := start(t)
	if c := other.run([]string{"exit", "3"}); c.wait().Code != 3 {
		t.Error("the other executor does not work")
	}
	stopped := 0
	for _, s := range bootstraps { // those that are not stopped may end by themselves
		if !s.stopped {
			continue
		}
		stopped++
		if s.gone() || !alive(s.pid) {
			t.Errorf("process %d was ended", s.pid)
		}
	}
	if stopped == 0 {
		t.Error("none of the bootstrap processes was stopped")
	}
	b.signal(unix.SIGKILL, true)
	// The exec fails, or was started just before it was stopped.
	eventually(t, func() bool { return len(over) > 0 }, "the exec goes on in a container that was killed")
}
