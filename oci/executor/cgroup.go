package executor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs"
	"github.com/opencontainers/runc/libcontainer"

	"github.com/crisp-cri/crisp/internal/backoff"
	"github.com/crisp-cri/crisp/internal/fault"
)

// cgroupPaths returns a container's directories by controller. The key "" is the v2 hierarchy:
// the only one, or on a hybrid host (v1 controllers, and a v2 hierarchy without any) one of
// many.
func cgroupPaths(lc *libcontainer.Container) (map[string]string, error) {
	st, err := lc.State()
	if err != nil {
		return nil, err
	}
	return maps.Clone(st.CgroupPaths), nil // the cgroup manager changes its own
}

// joinAll moves processes into those of their container's cgroups, paths, that libcontainer has
// left out: it ignores failures in a hierarchy without controllers, such as v2's on a hybrid
// host. Nothing could be executed in such a container, and its remaining processes would not be
// found when it ends.
func joinAll(paths map[string]string, pids ...int) error {
	for _, pid := range pids {
		in, err := cgroups.ParseCgroupFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil {
			return fmt.Errorf("look for cgroups: %w", err)
		}
		for key, dir := range paths {
			if own, ok := in[key]; !ok || own != "/" && strings.HasSuffix(dir, own) {
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

// members returns the processes of the cgroup and those below it.
func members(paths map[string]string) ([]int, error) {
	for _, key := range []string{"", "freezer", "pids", "memory", "devices"} {
		if dir := paths[key]; dir != "" {
			pids, err := cgroups.GetAllPids(dir)
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
				return nil, nil // a cgroup that is gone is empty
			}
			return pids, err
		}
	}
	return nil, fault.Internal.Errorf("cgroup %v has no hierarchy that lists processes", paths)
}

// signalAll signals every process of the cgroup. SIGKILL misses none, not even those being
// forked: it uses cgroup.kill (v2, Linux 5.14), or freezes the cgroup meanwhile, unless we are
// always forking (pauseForks). It thaws a frozen cgroup.
func signalAll(paths map[string]string, sig unix.Signal) error {
	if sig == unix.SIGKILL {
		if dir := paths[""]; dir != "" && os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) == nil {
			thawAll(paths)
			return nil
		}
		release, ok := func() {}, true
		if paths["freezer"] == "" { // on v2 an exec is forked in its container's cgroup, see endChildren
			release, ok = pauseForks()
		}
		if ok {
			defer release()
			freeze(paths, true)
		}
		defer thawAll(paths)
	}
	return signalEach(func() ([]int, error) { return members(paths) }, sig)
}

// signalBatch is how many pidfds signalEach has open at once.
const signalBatch = 256

// signalEach signals the processes that list returns. PIDs may have been reused in the meantime,
// so it signals a process only if it is still a member once its pidfd is open.
func signalEach(list func() ([]int, error), sig unix.Signal) error {
	pids, err := list()
	if err != nil {
		return err
	}
	var errs []error
	for batch := range slices.Chunk(pids, signalBatch) {
		fds := make(map[int]int, len(batch)) // by process
		for _, pid := range batch {
			if pid <= 0 {
				continue // not in a PID namespace that we see
			}
			if fd, err := unix.PidfdOpen(pid, 0); err == nil {
				fds[pid] = fd
			} else if err != unix.ESRCH {
				errs = append(errs, fmt.Errorf("pidfd of process %d: %w", pid, err))
			}
		}
		members, err := list()
		errs = append(errs, err)
		for _, pid := range members {
			fd, ok := fds[pid]
			if !ok {
				continue
			}
			if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && err != unix.ESRCH {
				errs = append(errs, fmt.Errorf("signal process %d: %w", pid, err))
			}
		}
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
	return errors.Join(errs...)
}

// freeze freezes or thaws the cgroup, as far as possible: a process that cannot be frozen can
// still be killed.
func freeze(paths map[string]string, on bool) {
	dir, file, value := paths["freezer"], "freezer.state", "THAWED"
	if on {
		value = "FROZEN"
	}
	if dir == "" {
		dir, file, value = paths[""], "cgroup.freeze", "0"
		if on {
			value = "1"
		}
	}
	if dir == "" {
		return
	}
	path := filepath.Join(dir, file)
	if os.WriteFile(path, []byte(value), 0) != nil || !on {
		return
	}
	for range 20 { // v1 reports FREEZING until all have stopped
		if data, err := os.ReadFile(path); err != nil || string(data) != "FREEZING\n" {
			return
		}
		time.Sleep(500 * time.Microsecond)
		os.WriteFile(path, []byte(value), 0)
	}
}

// thawAll thaws the cgroup and, on v1, those below it, which a container with access to its cgroups
// may have frozen: there a frozen process dies only when it is thawed.
func thawAll(paths map[string]string) {
	dir := paths["freezer"]
	if dir == "" {
		freeze(paths, false)
		return
	}
	_ = filepath.WalkDir(dir, func(at string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			_ = os.WriteFile(filepath.Join(at, "freezer.state"), []byte("THAWED"), 0)
		}
		return nil // some may be removed meanwhile
	})
}

// endPatience bounds how long killed processes may take to exit. One that does not is in
// uninterruptible sleep.
const endPatience = 2 * time.Second

// endAll kills every process of the cgroup and waits until they are gone. The error is
// fault.Unavailable if some do not exit in time.
func endAll(paths map[string]string) error {
	list := func() ([]int, error) { return members(paths) }
	return endListed("processes", list, func() error { return signalAll(paths, unix.SIGKILL) })
}

// endListed calls kill until list, of what, is empty.
func endListed(what string, list func() ([]int, error), kill func() error) error {
	deadline := time.Now().Add(endPatience)
	for pause := backoff.New(time.Millisecond, 50*time.Millisecond); ; {
		pids, err := list()
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fault.Unavailable.Errorf("%d %s, process %d first, do not end when killed", len(pids), what, pids[0])
		}
		if err := kill(); err != nil {
			return err
		}
		time.Sleep(pause.Next())
	}
}

// maxEnded bounds how many cgroups are removed when a container ends: it may have made any number
// below its own.
const maxEnded = 1000

// removeEnded removes the cgroups of a container that has ended, if no process is left: monitors
// such as cAdvisor would report it beside the container that takes its place. Its removal does the
// rest. systemd removes a scope itself. memory is the first: crispd looks for it to tell whether
// it has read the counters of a whole container.
func removeEnded(paths map[string]string) {
	left, deadline := maxEnded, time.Now().Add(endPatience)
	for _, dir := range append([]string{paths["memory"]}, slices.Collect(maps.Values(paths))...) {
		if strings.HasSuffix(dir, ".scope") {
			continue
		}
		for pause := backoff.New(time.Millisecond, 50*time.Millisecond); ; time.Sleep(pause.Next()) {
			if pids, err := members(paths); err != nil || len(pids) > 0 {
				return
			}
			// A process is listed no more shortly before it is gone.
			if removeTree(dir, &left) != unix.EBUSY || left <= 0 || time.Now().After(deadline) {
				break
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

// findBlkioFiles has the cgroups library find the names of blkio's files, which it keeps in global
// variables without a lock, before containers start at the same time. Since Linux 5.0 the names are
// the same in all cgroups. Without paths and limits nothing is written.
func findBlkioFiles() error {
	r := &cgroups.Resources{SkipDevices: true}
	m, err := fs.NewManager(&cgroups.Cgroup{Resources: r}, map[string]string{})
	if err != nil {
		return err
	}
	return m.Set(r)
}
