package executor

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/procstat"
)

// Strays. libcontainer starts a process with bootstrap processes (nsexec), which begin in the
// executor's own cgroup; on cgroup v1, those of an exec join the container's only at the end.
// When the executor is killed, their pipes are closed, and they exit. But one that a container
// has stopped, as it can stop an exec that it sees, waits for ever, and so does its parent,
// which waits for it: they are in no container's cgroup.

// endStrays kills the bootstrap processes of earlier executors with the libcontainer state
// directory root. We have none yet.
func endStrays(root string, log *slog.Logger) {
	list := func() ([]int, error) { return strays(root), nil }
	if pids := strays(root); len(pids) > 0 {
		err := signalEach(list, unix.SIGKILL)
		log.Info("processes that a killed executor was starting were killed", "pids", pids, "err", err)
	}
}

// strays returns the bootstrap processes in our own cgroup that no executor waits for; none if
// the cgroup cannot be read.
func strays(root string) []int {
	return slices.DeleteFunc(neighbours(), func(pid int) bool { return !isStray(pid, root) })
}

// neighbours returns the processes of our own cgroup that are in a PID namespace we see.
func neighbours() []int { return procstat.PIDs(filepath.Join(strayCgroup(), "cgroup.procs")) }

// strayCgroup returns our cgroup in the hierarchy in which the processes of containers are
// found.
func strayCgroup() string {
	own := ownCgroups()
	for _, controller := range []string{"freezer", "pids", "memory", "devices"} {
		if dir := own[controller]; dir != "" {
			return dir
		}
	}
	return own[""]
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
	return err == nil && (name == "/memfd:"+sealedName || name == "/"+sealedName || strings.HasPrefix(name, root+"/"))
}

// isBootstrap reports whether a process of our program is a bootstrap process.
func isBootstrap(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	args := strings.Split(string(line), "\x00")
	return err == nil && len(args) > 1 && filepath.Base(args[0]) == filepath.Base(os.Args[0]) && args[1] == "init"
}
