package testenv

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Processes returns the PIDs of the processes whose arguments match.
func Processes(match func(args []string) bool) []int {
	var pids []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err == nil && match(arguments(dir)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// ExecutorPid returns the PID of the executor with this state directory.
func ExecutorPid(state string) (int, error) {
	pids := Processes(func(args []string) bool {
		return len(args) > 0 && filepath.Base(args[0]) == "crisp-executor" && strings.Contains(strings.Join(args, "\x00"), state) && !slices.Contains(args, "init")
	})
	// A child that it has just forked has the same arguments for a moment, and may outlive
	// it.
	pids = slices.DeleteFunc(pids, func(pid int) bool {
		session, err := unix.Getsid(pid)
		return err != nil || session != pid
	})
	if len(pids) == 0 {
		return 0, errors.New("no executor runs")
	}
	return pids[0], nil
}

// arguments returns the arguments of a process, given its directory in /proc; nil if it is
// gone. During execve(2) a process has its new name before its arguments, so they may read
// as empty right after StartContainer; only kernel threads and zombies have no program. gVisor's
// processes have a program and have unmapped the memory of their arguments.
func arguments(dir string) []string {
	for {
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			return nil
		}
		if len(cmdline) > 0 {
			return strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
		}
		if _, err := os.Readlink(filepath.Join(dir, "exe")); err != nil || hasArguments(dir) {
			return nil
		}
	}
}

// hasArguments reports whether the process has an address for its arguments, see proc_pid_stat(5):
// it has none during execve(2).
func hasArguments(dir string) bool {
	const argStart = 48
	stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
	fields := strings.Fields(string(stat[strings.LastIndex(string(stat), ")")+1:])) // from the third on
	return len(fields) > argStart-3 && fields[argStart-3] != "0"
}

// Exists reports whether there is something at path.
func Exists(path string) bool { return stat(path)() == nil }
