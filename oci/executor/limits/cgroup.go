package limits

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/oci/executor/proc"
)

// JoinAll moves processes into those of their container's cgroups, paths, that libcontainer has
// left out: it ignores failures in a hierarchy without controllers, such as v2's on a hybrid
// host. Nothing could be executed in such a container, and its remaining processes would not be
// found when it ends.
func JoinAll(paths map[string]string, pids ...int) error {
	for _, pid := range pids {
		in, err := cgroups.ParseCgroupFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil {
			return fmt.Errorf("look for cgroups: %w", err)
		}
		for key, dir := range paths {
			// What a user was delegated has a longer path there.
			if own, ok := in[key]; !ok || path.Base(own) == path.Base(dir) {
				continue
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("make cgroup: %w", err)
			}
			if err := cgroups.WriteCgroupProc(dir, pid); err != nil {
				return fmt.Errorf("join cgroup: %w", err)
			}
		}
	}
	return nil
}

// maxEnded bounds how many cgroups are removed when a container ends: it may have made any number
// below its own.
const maxEnded = 1000

// RemoveEnded removes the cgroups of a container that has ended, if no process is left: monitors
// such as cAdvisor would report it beside the container that takes its place. Its removal does the
// rest. systemd removes a scope itself. memory is the first: crispd looks for it to tell whether
// it has read the counters of a whole container.
func RemoveEnded(paths map[string]string) {
	left, deadline := maxEnded, time.Now().Add(proc.Patience)
	hasProcess := func() bool {
		pids, err := proc.Members(paths)
		return err != nil || len(pids) > 0
	}
	if hasProcess() {
		return
	}
	for _, dir := range append([]string{paths["memory"]}, slices.Collect(maps.Values(paths))...) {
		if strings.HasSuffix(dir, ".scope") {
			continue
		}
		// A process is listed no more shortly before it is gone.
		pause := backoff.New(time.Millisecond, 50*time.Millisecond)
		for removeTree(dir, &left) == unix.EBUSY && left > 0 && time.Now().Before(deadline) {
			time.Sleep(pause.Next())
			if hasProcess() {
				return
			}
		}
	}
}

// removeTree removes a cgroup and those below it, as far as they are empty, and tries it with at
// most left of them.
func removeTree(dir string, left *int) error {
	err := unix.Rmdir(dir)
	if *left--; *left <= 0 || err == nil || err == unix.ENOENT {
		return err
	}
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if entry.IsDir() {
			removeTree(filepath.Join(dir, entry.Name()), left)
		}
	}
	return unix.Rmdir(dir)
}

// Scores are the previous oom_score_adj of processes, by PID; "" = it ended before it was read.
type Scores map[int]string

// Replace gives every process of the cgroup the score. A process forked meanwhile may still have
// its parent's old one, so replace repeats until there is no new process, within reason.
func (s Scores) Replace(paths map[string]string, score int) error {
	for range 10 {
		pids, err := proc.Members(paths)
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
				err = WriteScore(pid, strconv.Itoa(score))
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

func (s Scores) Restore() error {
	var errs []error
	for pid, old := range s {
		if old == "" {
			continue
		}
		if err := WriteScore(pid, old); err != nil && !gone(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func scoreFile(pid int) string { return fmt.Sprintf("/proc/%d/oom_score_adj", pid) }

func WriteScore(pid int, score string) error {
	return os.WriteFile(scoreFile(pid), []byte(score), 0)
}

// gone reports whether err means that a process has ended.
func gone(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// A Warmer keeps a lock warm while containers are being started: that for moving a process between
// cgroups. Its first taker waits for an RCU grace period, about 10 ms: more than all the rest of a
// start. Takers in the next few milliseconds need not wait (cgroup_threadgroup_rwsem is a per-CPU
// semaphore; kernel/rcu/sync.c). The mount option favordynmods keeps the lock warm for good, at the
// cost of every fork on the machine. A Warmer moves the executor to its current cgroup, which takes
// about 20 µs when the lock is warm. So the first wait overlaps with what precedes libcontainer's
// move, or with crispd's preparations (wire.MethodWarm).
type Warmer struct {
	procs *os.File // cgroup.procs of our own cgroup; nil if it cannot be opened

	mu    sync.Mutex
	until time.Time // guarded by mu
	runs  bool      // guarded by mu
}

const (
	warmFor   = 300 * time.Millisecond // after the latest start
	warmEvery = 4 * time.Millisecond   // well within the time that the kernel stays warm
)

// NewWarmer opens our own cgroup in any hierarchy: the lock is the same for all.
func NewWarmer() *Warmer {
	for _, dir := range proc.OwnCgroups() {
		fd, err := unix.Open(filepath.Join(dir, "cgroup.procs"), unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			return &Warmer{procs: os.NewFile(uintptr(fd), "cgroup.procs")}
		}
	}
	return &Warmer{}
}

// Warm keeps the lock warm for a while. It does not wait.
func (w *Warmer) Warm() {
	if w.procs == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.until = time.Now().Add(warmFor)
	if !w.runs {
		w.runs = true
		go w.loop()
	}
}

func (w *Warmer) loop() {
	tick := time.NewTicker(warmEvery)
	defer tick.Stop()
	for {
		_, err := w.procs.Write([]byte("0"))
		w.mu.Lock()
		if err != nil || time.Now().After(w.until) {
			w.runs = false
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		<-tick.C
	}
}
