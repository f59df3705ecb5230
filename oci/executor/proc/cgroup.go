package proc

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opencontainers/cgroups"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/kernel"
)

// Members returns the processes of the cgroup and those below it.
func Members(paths map[string]string) ([]int, error) {
	dir := cmp.Or(paths[""], paths["freezer"], paths["pids"], paths["memory"], paths["devices"])
	if dir == "" && kernel.NoCgroups() {
		return nil, nil // its PID namespace has them
	}
	if dir == "" {
		return nil, fault.Internal.Errorf("cgroup %v has no hierarchy that lists processes", paths)
	}
	pids, err := cgroups.GetAllPids(dir)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil // a cgroup that is gone is empty
	}
	return pids, err
}

// SignalAll signals every process of the cgroup. SIGKILL misses none, not even those being
// forked: it uses cgroup.kill (v2, Linux 5.14), or freezes the cgroup meanwhile, unless we are
// always forking (pauseForks). It thaws a frozen cgroup.
func SignalAll(paths map[string]string, sig unix.Signal) error {
	if sig == unix.SIGKILL {
		if dir := paths[""]; dir != "" && os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) == nil {
			ThawAll(paths)
			return nil
		}
		release, ok := func() {}, true
		if paths["freezer"] == "" { // on v2 an exec is forked in its container's cgroup, see endChildren
			release, ok = pauseForks()
		}
		if ok {
			defer release()
			Freeze(paths, true)
		}
		defer ThawAll(paths)
	}
	return signalEach(func() ([]int, error) { return Members(paths) }, sig)
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

// Freeze freezes or thaws the cgroup, as far as possible: a process that cannot be frozen can
// still be killed.
func Freeze(paths map[string]string, on bool) {
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

// ThawAll thaws the cgroup and, on v1, those below it, which a container with access to its cgroups
// may have frozen: there a frozen process dies only when it is thawed.
func ThawAll(paths map[string]string) {
	dir := paths["freezer"]
	if dir == "" {
		Freeze(paths, false)
		return
	}
	_ = filepath.WalkDir(dir, func(at string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			_ = os.WriteFile(filepath.Join(at, "freezer.state"), []byte("THAWED"), 0)
		}
		return nil // some may be removed meanwhile
	})
}

// Thaw undoes freeze. A cgroup that is gone counts as thawed.
func Thaw(paths map[string]string) error {
	Freeze(paths, false)
	for range 100 {
		frozen, err := Frozen(paths)
		if errors.Is(err, os.ErrNotExist) || err == nil && !frozen {
			return nil
		}
		Freeze(paths, false)
		time.Sleep(time.Millisecond)
	}
	return fault.Internal.Errorf("it stays frozen")
}

// Freezing reports whether the cgroup is frozen or about to be.
func Freezing(paths map[string]string) bool {
	if dir := paths["freezer"]; dir != "" {
		state, err := os.ReadFile(filepath.Join(dir, "freezer.state"))
		return err == nil && string(state) != "THAWED\n"
	}
	asked, err := os.ReadFile(filepath.Join(paths[""], "cgroup.freeze"))
	if err == nil && string(asked) == "1\n" {
		return true
	}
	frozen, err := Frozen(paths) // its pod's cgroup may be frozen
	return err == nil && frozen
}

// Frozen reports whether all processes of the cgroup have stopped: on v2 from a line of
// cgroup.events, which follows a write to cgroup.freeze.
func Frozen(paths map[string]string) (frozen bool, err error) {
	file, want := filepath.Join(paths["freezer"], "freezer.state"), "FROZEN"
	if paths["freezer"] == "" {
		file, want = filepath.Join(paths[""], "cgroup.events"), "frozen 1"
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return false, fault.WrongState.Errorf("its cgroup cannot be frozen: %w", err)
	}
	return bytes.Contains(data, []byte(want)), nil
}

// OwnCgroups returns the directories of our own cgroup by controller, in the hierarchies that
// are mounted completely; the key "" is v2's.
func OwnCgroups() map[string]string {
	all, _ := kernel.Hierarchies()
	dirs := make(map[string]string)
	for _, h := range all {
		if h.Whole {
			for _, controller := range h.Controllers {
				dirs[controller] = h.Own()
			}
		}
	}
	return dirs
}
