package test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// processes returns the PIDs of the processes whose arguments match.
func processes(match func(args []string) bool) []int {
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

// arguments returns the arguments of a process, given its directory in /proc; nil if it is
// gone. During execve(2) a process has its new name before its arguments, so they may read
// as empty right after StartContainer; only kernel threads and zombies have no program.
func arguments(dir string) []string {
	for {
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			return nil
		}
		if len(cmdline) > 0 {
			return strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
		}
		if _, err := os.Readlink(filepath.Join(dir, "exe")); err != nil {
			return nil
		}
	}
}

// pidOf returns the PID of the process whose first arguments are testbin and verb.
func pidOf(t *testing.T, verb string) int {
	t.Helper()
	pids := processes(func(args []string) bool { return len(args) > 1 && args[0] == "/testbin" && args[1] == verb })
	if len(pids) == 0 {
		t.Fatalf("no process of testbin %s", verb)
	}
	return pids[0]
}
