package testns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
)

// cgroupsEnv has the cgroups of a test, one of each hierarchy: PATH:PATH…
const cgroupsEnv = "CRISP_TEST_CGROUPS"

// A hierarchy is a mount of cgroups.
type hierarchy struct {
	dir     string // where it is mounted
	kind    string // cgroup or cgroup2
	options string // of a cgroup mount: its controllers or its name
}

// hierarchies lists the mounts of cgroups.
func hierarchies() ([]hierarchy, error) {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.FSType, "cgroup"), false
	})
	var all []hierarchy
	for _, m := range mounts {
		options := slices.DeleteFunc(strings.Split(m.VFSOptions, ","), func(o string) bool {
			return o == "rw" || o == "ro" || o == "seclabel"
		})
		// One that is mounted over is listed too.
		all = slices.DeleteFunc(all, func(h hierarchy) bool { return h.dir == m.Mountpoint })
		all = append(all, hierarchy{m.Mountpoint, m.FSType, strings.Join(options, ",")})
	}
	return all, err
}

// own returns the cgroups of this process by controllers, name=… or "".
func own() (map[string]string, error) {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	paths := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if parts := strings.SplitN(strings.TrimSpace(line), ":", 3); len(parts) == 3 {
			for c := range strings.SplitSeq(parts[1], ",") {
				paths[c] = parts[2]
			}
		}
	}
	return paths, nil
}

type cgroups []string

func (g cgroups) String() string { return strings.Join(g, ":") }

// makeCgroups makes a cgroup of that name in each hierarchy, below this process's cgroup.
// On a machine with only cgroup v2 it is below the root, so that it can have controllers.
func makeCgroups(name string) (g cgroups, err error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	mine, err := own()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.remove())
		}
	}()
	for _, h := range all {
		if !strings.HasPrefix(h.dir, "/sys/fs/cgroup") {
			continue // in a container's root
		}
		parent := h.dir
		if h.kind == "cgroup" {
			controller, _, _ := strings.Cut(h.options, ",")
			path, ok := mine[controller]
			if !ok {
				continue
			}
			parent = filepath.Join(h.dir, path)
		}
		dir := filepath.Join(parent, "crisp-test-"+name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return g, err
		}
		g = append(g, dir)
		// A cpuset cgroup is of no use before it has both (cgroups(7)).
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			data, err := os.ReadFile(filepath.Join(parent, file))
			if err != nil || h.kind != "cgroup" {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, file), data, 0o644); err != nil {
				return g, err
			}
		}
	}
	return g, nil
}

// remove removes the cgroups and what a test left below them.
func (g cgroups) remove() error {
	var left error
	for _, root := range g {
		// A cgroup can be removed when the last process in it has been reaped, which may be
		// a moment after its PID namespace ended.
		err := removeCgroup(root)
		for deadline := time.Now().Add(5 * time.Second); err != nil && time.Now().Before(deadline); err = removeCgroup(root) {
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil {
			left = errors.Join(left, fmt.Errorf("remove the test's cgroup: %w", err))
		}
	}
	return left
}

func removeCgroup(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for i := len(dirs) - 1; i >= 0; i-- {
		if rerr := os.Remove(dirs[i]); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = rerr
		}
	}
	return err
}
