package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/internal/flock"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// An attachment's lock outlives the daemon that took it, through the plugin that has inherited
// it. No caller will use the result of a dead daemon's plugin, and DEL follows anyway. So it gets a
// moment to exit, and is then killed, as it would have been when its caller's context ended. The
// lock itself identifies it: its processes are those that have the file open. That needs no record,
// and no PID that may have been reused.

// orphanLife is how long the plugin of a dead daemon may keep running.
const orphanLife = 5 * time.Second

// working holds the paths of the locks that this process holds. Their plugins end with their
// callers' contexts.
var working sync.Map

// A holder is a process that has a lock file open.
type holder struct {
	pid, group, session int
	name                string
}

// endOrphans kills the plugins that hold the lock f and were not started by this process, each
// with its process group. It spares a daemon that a plugin has left behind in its own session:
// if only such daemons have the lock, no plugin is at work, and the file is removed, so that the
// next caller locks a new one.
func endOrphans(ctx context.Context, log *slog.Logger, f *os.File) error {
	if _, ok := working.Load(f.Name()); ok {
		return nil
	}
	all, err := holders(f)
	if err != nil || len(all) == 0 {
		return err
	}
	atWork := slices.DeleteFunc(slices.Clone(all), func(h holder) bool { return h.group == h.session })
	if len(atWork) == 0 {
		if !flock.IsAt(f, f.Name()) {
			return nil // removed meanwhile; the file of that name is another one
		}
		log.WarnContext(ctx, "lock was left to daemons of a plugin", "path", f.Name(), "plugin", all[0].name)
		return os.Remove(f.Name())
	}
	for _, h := range atWork {
		log.WarnContext(ctx, "plugin of a crispd that has ended was killed", "plugin", h.name, "pid", h.pid)
		if err := h.kill(f); err != nil {
			return err
		}
	}
	return nil
}

// kill ends the holder, if it is still the process that has f open.
func (h holder) kill(f *os.File) error {
	fd, err := unix.PidfdOpen(h.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(fd)
	if now, err := holders(f); err != nil || !slices.Contains(now, h) {
		return nil
	}
	// Its group also has the children that have closed what they inherited. crispd created the group
	// for a plugin, and the process of the pidfd is still in it, so the number cannot have been reused
	// for another group.
	if h.group > 1 && h.group != unix.Getpgrp() {
		unix.Kill(-h.group, unix.SIGKILL)
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill plugin %s (process %d): %w", h.name, h.pid, err)
	}
	return nil
}

// holders lists the other processes that have f open. Links in /proc/<pid>/fd are read
// but not followed: their targets may not respond.
func holders(f *os.File) ([]holder, error) {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return nil, err
	}
	procs, err := procfs.AllProcs()
	if err != nil {
		return nil, err
	}
	var all []holder
	for _, p := range procs {
		files, err := p.FileDescriptorTargets()
		if err != nil || p.PID == os.Getpid() || !slices.Contains(files, path) {
			continue
		}
		if stat, err := p.Stat(); err == nil {
			all = append(all, holder{pid: p.PID, group: stat.PGRP, session: stat.Session, name: stat.Comm})
		}
	}
	return all, nil
}
