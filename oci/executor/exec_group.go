package executor

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/backoff"
)

// makeGroup creates the sub-cgroup, in v1's freezer or in the v2 hierarchy, and returns
// libcontainer's description of it. Without a sub-cgroup the exec runs in the container's own
// cgroup, and its session tells what belongs to it.
func (e *execution) makeGroup() map[string]string {
	controller := groupController(e.c.ref.Cgroups)
	base := e.c.ref.Cgroups[controller]
	if base == "" {
		return nil
	}
	name := "exec-" + e.id
	dir := filepath.Join(base, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil
	}
	// Beside threaded cgroups it cannot hold processes ("domain invalid", cgroups(7)).
	if kind, err := os.ReadFile(filepath.Join(dir, "cgroup.type")); err == nil && strings.TrimSpace(string(kind)) != "domain" {
		unix.Rmdir(dir)
		return nil
	}
	e.group = map[string]string{controller: dir}
	return map[string]string{controller: name}
}

// groupController returns the hierarchy in which execs have cgroups.
func groupController(paths map[string]string) string {
	if paths["freezer"] != "" {
		return "freezer"
	}
	return ""
}

// The pauses between two attempts to remove an exec's cgroup, in which processes that it left
// behind live on, double from groupRetry up to groupRetryMax.
const (
	groupRetry    = 100 * time.Millisecond
	groupRetryMax = time.Minute
)

// removeGroup removes the cgroup of an exec that has ended as soon as it is empty.
func (e *execution) removeGroup() {
	for _, dir := range e.group {
		removeEmpty(dir, backoff.New(groupRetry, groupRetryMax), e.c.gone)
	}
}

// endGroup is removeGroup for an exec that failed. An engine may have started the process before
// it failed; that process then has no owner.
func (e *execution) endGroup() error {
	defer e.removeGroup()
	if e.group == nil {
		return nil
	}
	return signalAll(e.group, unix.SIGKILL)
}

// removeEmpty removes a cgroup as soon as it is empty, until its container is gone.
func removeEmpty(dir string, pause *backoff.Backoff, gone <-chan struct{}) {
	if err := unix.Rmdir(dir); err != unix.EBUSY && err != unix.ENOTEMPTY {
		return
	}
	select {
	case <-gone: // delete removes all of them
		return
	default:
	}
	time.AfterFunc(pause.Next(), func() { removeEmpty(dir, pause, gone) })
}

// execGroup is the name of an exec's cgroup: a session and a number.
var execGroup = regexp.MustCompile(`^exec-([0-9a-z]+)-[0-9a-z]+$`)

// endForeign kills the execs of a dead executor in c: they have lost their stdio, nobody will
// ask for their exit codes, and no timeout would end them. Those of an engine without
// sub-cgroups cannot be found on cgroup v1. root is libcontainer's state directory.
func (t *execs) endForeign(c *container, root string) error {
	controller := groupController(c.ref.Cgroups)
	base := c.ref.Cgroups[controller]
	if base == "" {
		return nil
	}
	entries, err := os.ReadDir(base)
	if err != nil {
		return nil // the container is gone
	}
	var errs []error
	if cgroups.IsCgroup2UnifiedMode() {
		errs = append(errs, c.endForeignTrees(root))
	}
	for _, entry := range entries { // before cgroup v2 went without, and in the host's PID namespace
		m := execGroup.FindStringSubmatch(entry.Name())
		if m == nil || !entry.IsDir() || m[1] == t.session {
			continue
		}
		dir := filepath.Join(base, entry.Name())
		errs = append(errs, signalAll(map[string]string{controller: dir}, unix.SIGKILL))
		removeEmpty(dir, backoff.New(groupRetry, groupRetryMax), c.gone)
	}
	return errors.Join(errs...)
}

// removeSpentGroups is removeGroup for the execs of c that ended before an upgrade.
func (t *execs) removeSpentGroups(c *container) {
	live := make(map[string]bool)
	t.mu.Lock()
	for _, e := range t.all {
		select {
		case <-e.ended: // its code has still to be reported
		default:
			live["exec-"+e.id] = true
		}
	}
	t.mu.Unlock()
	base := c.ref.Cgroups[groupController(c.ref.Cgroups)]
	entries, _ := os.ReadDir(base)
	for _, entry := range entries {
		if base != "" && entry.IsDir() && execGroup.MatchString(entry.Name()) && !live[entry.Name()] {
			removeEmpty(filepath.Join(base, entry.Name()), backoff.New(groupRetry, groupRetryMax), c.gone)
		}
	}
}
