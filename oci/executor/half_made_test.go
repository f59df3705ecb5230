package executor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/procstat"
	"github.com/crisp-cri/crisp/oci/wire"
)

// The executor is killed while another container of the pod keeps a start stopped. Whether
// the container is then started again or removed, nothing of the first start is left.
func TestCrashWhileAStartIsStopped(t *testing.T) {
	n := start(t)
	b := n.run([]string{"sleep", "for-ever"})
	beside := func(_ *wire.RunRequest, s *specs.Spec) {
		s.Linux.Namespaces[0].Path = fmt.Sprintf("/proc/%d/ns/pid", b.reply.Pid)
	}
	for try := range 4 {
		bad := b.exec(wire.ExecRequest{Process: process("print", "up", "stop-others")})
		line(t, bad.files["stdout"])
		var all []*box
		bootstraps, over := n.stopped(func() <-chan error {
			all = append(all, n.request([]string{"exit", "3"}, beside))
			return n.begin(t.Context(), all[len(all)-1])
		})
		n.crash(func() { <-over })
		b.adopt() // also ends the exec that stops the others
		last := all[len(all)-1]
		for _, early := range all[:len(all)-1] {
			early.delete()
		}
		if try%2 == 0 {
			last.delete()
		}
		last.startAgain()
		for _, s := range bootstraps {
			eventually(t, s.gone, "process %d of a start is left", s.pid)
		}
	}
}

// startAgain repeats the request of a container that exits with 3.
func (b *box) startAgain() {
	b.t.Helper()
	b.fds = b.call(wire.MethodRun, b.req, &b.reply)
	defer b.drop()
	if e := b.wait(); e.Code != 3 {
		b.t.Errorf("exit of the next start is %+v", e)
	}
	b.delete()
}

// hookProcesses returns the executor's descendants that are neither bootstrap processes nor CRIU's,
// once there are two: the hook and its child.
func (n *node) hookProcesses() (all []bootstrap) {
	n.t.Helper()
	eventually(n.t, func() bool {
		all = nil
		for _, name := range descendants(strconv.Itoa(n.cmd.Process.Pid)) {
			pid, _ := strconv.Atoi(name)
			if !isForeign(pid) {
				continue
			}
			if fd, err := unix.PidfdOpen(pid, 0); err == nil {
				n.t.Cleanup(func() { unix.Close(fd) })
				all = append(all, bootstrap{pid: pid, pidfd: fd})
			}
		}
		return len(all) >= 2
	}, "nothing hangs")
	return all
}

// isForeign reports whether a descendant of the executor runs another program than the
// executor's or CRIU.
func isForeign(pid int) bool {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if len(line) == 0 || strings.HasPrefix(string(line), "crisp-executor\x00") {
		return false
	}
	for pid > 1 {
		stat, err := procstat.Read(pid)
		if err != nil || strings.Contains(stat.Name, "criu") {
			return false
		}
		pid = stat.Parent
	}
	return true
}

// The executor is killed while a hook or an engine hangs. Its processes are ended with the rest of
// the start.
func TestCrashWhileAHookHangs(t *testing.T) {
	hangs := specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", "sleep 3600 & wait; true"}, Env: []string{"PATH=" + os.Getenv("PATH")}}
	for name, hooks := range map[string]*specs.Hooks{
		"prestart":        {Prestart: []specs.Hook{hangs}},
		"createRuntime":   {CreateRuntime: []specs.Hook{hangs}},
		"no environment":  {CreateRuntime: []specs.Hook{{Path: hangs.Path, Args: hangs.Args}}},
		"createContainer": {CreateContainer: []specs.Hook{hangs}},
		"startContainer":  {StartContainer: []specs.Hook{{Path: "/testbin", Args: []string{"testbin", "fork", "sleep", "for-ever"}}}},
		"engine's":        nil,
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t)
			engine, _ := n.script("case \" $* \" in *' create '*) sleep 3600 & wait;; esac\n")
			for _, removed := range []bool{true, false} {
				b := n.request([]string{"exit", "3"}, func(r *wire.RunRequest, s *specs.Spec) {
					if s.Hooks = hooks; hooks == nil {
						engine(r, s)
					}
				})
				over := n.begin(t.Context(), b)
				hook, bootstraps := n.hookProcesses(), n.findBootstraps()
				n.crash(func() { <-over })
				if removed || hooks == nil {
					b.delete()
				} else {
					again := n.request([]string{"exit", "3"})
					again.req.ID = b.id
					b.req = again.req
					b.startAgain()
				}
				for _, s := range append(hook, bootstraps...) {
					eventually(t, s.gone, "process %d of a start is left", s.pid)
				}
			}
		})
	}
}

// A process that a hook has left for its container lives as long as the container, even if the
// executor dies.
func TestCrashSparesWhatHooksLeftRunning(t *testing.T) {
	n := start(t)
	file := filepath.Join(n.dir, "pid")
	b := n.run([]string{"sleep", "for-ever"}, withHook(file+".begun", "setsid sleep 3600 </dev/null >/dev/null 2>&1 & echo $! > "+file))
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(data), &pid); err != nil {
		t.Fatal(err)
	}
	half := n.request([]string{"exit", "3"}, withHook(filepath.Join(n.dir, "half"), "sleep 3600 & wait; true"))
	over := n.begin(t.Context(), half)
	eventually(t, func() bool { _, err := os.Stat(filepath.Join(n.dir, "half")); return err == nil }, "the hook does not run")
	n.crash(func() { <-over })
	b.adopt()
	half.delete()
	if !alive(pid) {
		t.Error("the process that the hook left running was ended")
	}
	unix.Kill(pid, unix.SIGKILL)
}
