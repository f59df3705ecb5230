package testns

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
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
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []hierarchy
	for lines := bufio.NewScanner(f); lines.Scan(); {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) < 5 || len(right) < 3 || !strings.HasPrefix(right[0], "cgroup") {
			continue
		}
		var options []string
		for o := range strings.SplitSeq(right[2], ",") {
			if o != "rw" && o != "ro" && o != "seclabel" {
				options = append(options, o)
			}
		}
		// One that is mounted over is listed too.
		all = slices.DeleteFunc(all, func(h hierarchy) bool { return h.dir == left[4] })
		all = append(all, hierarchy{left[4], right[0], strings.Join(options, ",")})
	}
	return all, nil
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
