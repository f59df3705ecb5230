package executor

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// scores are the previous oom_score_adj of processes, by PID; "" = it ended before it was read.
type scores map[int]string

// replace gives every process of the cgroup the score. A process forked meanwhile may still have
// its parent's old one, so replace repeats until there is no new process, within reason.
func (s scores) replace(paths map[string]string, score int) error {
	for range 10 {
		pids, err := members(paths)
		if err != nil {
			return err
		}
		known := len(s)
		for _, pid := range pids {
			if _, ok := s[pid]; ok {
				continue
			}
			old, err := os.ReadFile(scoreFile(pid))
			s[pid] = strings.TrimSpace(string(old))
			if err == nil {
				err = writeScore(pid, strconv.Itoa(score))
			}
			if err != nil && !gone(err) {
				return err
			}
		}
		if len(s) == known {
			return nil
		}
	}
	return nil
}

// restore restores the processes' scores.
func (s scores) restore() error {
	var errs []error
	for pid, old := range s {
		if old == "" {
			continue
		}
		if err := writeScore(pid, old); err != nil && !gone(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func scoreFile(pid int) string { return fmt.Sprintf("/proc/%d/oom_score_adj", pid) }

func writeScore(pid int, score string) error {
	return os.WriteFile(scoreFile(pid), []byte(score), 0)
}

// gone reports whether err means that a process has ended.
func gone(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }
