package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// userHZ is the unit of /proc/stat on every architecture that Linux and Go have in common.
const userHZ = 100

// machineCPU returns the CPU time that all processes have used since boot. cgroup v1 has it in
// nanoseconds; else it is /proc/stat's, in ticks.
func machineCPU(root fs.FS) (time.Duration, error) {
	for _, file := range []string{"sys/fs/cgroup/cpuacct/cpuacct.usage", "sys/fs/cgroup/cpu,cpuacct/cpuacct.usage"} {
		data, err := fs.ReadFile(root, file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		ns, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		return time.Duration(ns), nil
	}
	data, err := fs.ReadFile(root, "proc/stat")
	if err != nil {
		return 0, err
	}
	return parseStat(string(data))
}

// parseStat adds up user, nice, system, irq and softirq of proc_stat(5)'s first line.
func parseStat(stat string) (time.Duration, error) {
	line, _, _ := strings.Cut(stat, "\n")
	f := strings.Fields(line)
	if len(f) < 8 || f[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	var ticks int64
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / userHZ, nil
}

// ownCPU returns the CPU time that this process has used.
func ownCPU() time.Duration {
	var usage unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &usage) // fails only for a bad address
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
