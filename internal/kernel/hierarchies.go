package kernel

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/cgroups"
)

// A Hierarchy is a mounted cgroup hierarchy: that of v2, or one of v1.
type Hierarchy struct {
	Dir   string // mount point
	Whole bool   // its root is mounted, not only a cgroup below it
	// Controllers are v1's, as in /proc/self/cgroup: "cpu", "cpuacct", or "name=systemd" for a
	// hierarchy without any. For v2 it is "", whatever its controllers are.
	Controllers []string
	own         string
}

// V2 reports whether it is the unified hierarchy.
func (h Hierarchy) V2() bool { return slices.Contains(h.Controllers, "") }

// Own returns the directory of our own cgroup. It exists if the hierarchy is Whole.
func (h Hierarchy) Own() string { return filepath.Join(h.Dir, h.own) }

// Hierarchies returns the hierarchies of this host that we can see, each once. On a hybrid host,
// v2 is one of them.
func Hierarchies() ([]Hierarchy, error) {
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	defer mounts.Close()
	own, err := cgroups.ParseCgroupFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	return hierarchies(mounts, own)
}

// hierarchies reads a mountinfo, proc_pid_mountinfo(5), of a process whose cgroups are own.
func hierarchies(mounts io.Reader, own map[string]string) ([]Hierarchy, error) {
	all, err := mountinfo.GetMountsFromReader(mounts, func(m *mountinfo.Info) (skip, stop bool) {
		return m.FSType != "cgroup" && m.FSType != "cgroup2", false
	})
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	var found []Hierarchy
	at := make(map[[2]int]int) // by device: a hierarchy may be mounted more than once
	for _, m := range all {
		h := Hierarchy{Dir: m.Mountpoint, Whole: m.Root == "/"}
		options := strings.Split(m.VFSOptions, ",")
		for controller, path := range own {
			if m.FSType == "cgroup2" && controller == "" || m.FSType == "cgroup" && slices.Contains(options, controller) {
				h.Controllers, h.own = append(h.Controllers, controller), path
			}
		}
		slices.Sort(h.Controllers)
		device := [2]int{m.Major, m.Minor}
		switch i, seen := at[device]; {
		case !seen:
			at[device] = len(found)
			found = append(found, h)
		case h.Whole && !found[i].Whole:
			found[i] = h
		}
	}
	return found, nil
}
