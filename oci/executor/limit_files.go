package executor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// written are the cgroup files that an update may write, by v1 controller; "" are those of v2.
// Some kernels lack some of them.
var written = map[string][]string{
	"memory":  {"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.soft_limit_in_bytes"},
	"cpu":     {"cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us", "cpu.idle", "cpu.rt_runtime_us", "cpu.rt_period_us"},
	"cpuset":  {"cpuset.cpus", "cpuset.mems"},
	"pids":    {"pids.max"},
	"hugetlb": {"hugetlb.*.limit_in_bytes"},
	"": {
		"memory.max", "memory.swap.max", "memory.low", "memory.high", "memory.min",
		"cpu.weight", "cpu.max", "cpu.max.burst", "cpu.idle", "cpuset.cpus", "cpuset.mems", "pids.max", "hugetlb.*.max",
	},
}

// limitFiles are such files, by path, with their contents.
type limitFiles map[string]string

// readLimitFiles reads the files that an update of the cgroup may change; unified has the names
// of further v2 files. In a file with several lines, such as io.max, the old lines are restored;
// a new line stays.
func readLimitFiles(paths map[string]string, unified map[string]string) limitFiles {
	s := make(limitFiles)
	for controller, dir := range paths {
		if dir == "" {
			continue
		}
		for _, pattern := range written[controller] {
			files, _ := filepath.Glob(filepath.Join(dir, pattern))
			for _, file := range files {
				s.read(file)
			}
		}
	}
	for name := range unified {
		if dir := paths[""]; dir != "" {
			s.read(filepath.Join(dir, name))
		}
	}
	return s
}

func (s limitFiles) read(file string) {
	if data, err := os.ReadFile(file); err == nil {
		s[file] = string(data)
	}
}

// restore writes back the files that have changed. It makes two passes, as a limit may not
// exceed or undercut another one that is restored later.
func (s limitFiles) restore() error {
	var errs []error
	for range 2 {
		errs = nil
		for file, was := range s {
			now, err := os.ReadFile(file)
			if err != nil || string(now) == was {
				continue // the container has ended; or it did not change
			}
			if err := restoreFile(file, was); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// restoreFile writes each line separately, as the kernel requires. If the file was empty, it
// writes an empty line.
func restoreFile(file, was string) error {
	for line := range strings.SplitSeq(strings.TrimSuffix(was, "\n"), "\n") {
		err := os.WriteFile(file, []byte(line+"\n"), 0)
		if errors.Is(err, unix.ENOSPC) && line == "" {
			err = inheritCpuset(file)
		}
		if err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("put back: %w", err)
		}
	}
	return nil
}

// inheritCpuset sets a set of CPUs or memory nodes to its effective value while it was empty:
// its parent's. The kernel does not let it become empty again while there are processes
// (validate_change in kernel/cgroup/cpuset.c).
func inheritCpuset(file string) error {
	dir, name := filepath.Split(file)
	all, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Clean(dir)), name+".effective"))
	if err != nil {
		return err
	}
	return os.WriteFile(file, all, 0)
}
