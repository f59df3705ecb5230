package executor

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// scores are the oom_score_adj that processes had, by process ID; "" = it ended
// before it was asked.
type scores map[int]string

// replace gives every process of the cgroup the score. A process that is forked
// meanwhile may still have its parent's old one, so it looks again until there is
// none that is new, within reason.
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

// restore gives the processes back what they had.
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

// gone reports whether err says that a process has ended.
func gone(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }
