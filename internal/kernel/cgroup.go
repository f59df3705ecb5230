package kernel

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/userns"
)

const cgroupRoot = "/sys/fs/cgroup"

// probeCgroups examines the hierarchy mounted at root. On a hybrid host, with v1 controllers at
// root and an empty v2 in root/unified, v1 counts.
func (f *Features) probeCgroups(root string) {
	if f.NoCgroups {
		return // see Hierarchies
	}
	var fs unix.Statfs_t
	f.CgroupV2 = unix.Statfs(root, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC
	f.SwapLimit = swapLimit(root)
	if !f.CgroupV2 {
		f.Controllers = enabledV1(read("/proc/cgroups"), func(name string) bool { return exists(filepath.Join(root, name)) })
		return
	}
	f.Controllers = strings.Fields(read(filepath.Join(root, "cgroup.controllers")))
	f.CgroupKill = belowRoot(root, "cgroup.kill") || f.AtLeast(5, 14)
}

// SwapLimit reports whether the swap of a cgroup can be limited: v1 limits memory and swap
// together, v2 swap alone.
func SwapLimit() bool { return swapLimit(cgroupRoot) }

func swapLimit(root string) bool {
	return exists(filepath.Join(root, "memory", "memory.memsw.limit_in_bytes")) || belowRoot(root, "memory.swap.max")
}

// belowRoot reports whether cgroups of the unified hierarchy have a file called name. The root
// cgroup has no limit files; our own, or one below the root, does.
func belowRoot(root, name string) bool {
	dirs, _ := filepath.Glob(filepath.Join(root, "*/"))
	all, _ := Hierarchies()
	for _, h := range all {
		dirs = append(dirs, h.Own())
	}
	return slices.ContainsFunc(dirs, func(dir string) bool { return exists(filepath.Join(dir, name)) })
}

// enabledV1 returns the controllers of a /proc/cgroups that are enabled and mounted.
func enabledV1(table string, mounted func(string) bool) []string {
	var list []string
	for line := range strings.Lines(table) {
		if f := strings.Fields(line); len(f) == 4 && f[3] == "1" && mounted(f[0]) {
			list = append(list, f[0])
		}
	}
	slices.Sort(list)
	return list
}

// Has reports whether a cgroup controller can be used.
func (f Features) Has(controller string) bool { return slices.Contains(f.Controllers, controller) }

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

// Own returns the directory of our own cgroup. It exists if we are below what is mounted: always if the
// root of the hierarchy is.
func (h Hierarchy) Own() string { return filepath.Join(h.Dir, h.own) }

// Hierarchies returns the hierarchies of this host that we can see, each once. On a hybrid host,
// v2 is one of them. While Bare there is only what was delegated to us, and that is whole: others that
// we see are the host's.
func Hierarchies() ([]Hierarchy, error) {
	all, err := visibleHierarchies()
	if Bare() {
		all = slices.DeleteFunc(all, func(h Hierarchy) bool { return !h.writable() })
		for i := range all {
			all[i].Whole = true
		}
	}
	return all, err
}

// Bare reports whether we are in a user namespace that was given nothing of the host but, at most, a part
// of the unified cgroup hierarchy: we may make no cgroup at the root of one. A node in LXC may, and is a host like
// any other. It is decided once, and decides what crisp does for an ordinary user.
var Bare = sync.OnceValue(func() bool {
	all, _ := visibleHierarchies()
	return userns.Own() != nil && !slices.ContainsFunc(all, func(h Hierarchy) bool { return (h.Whole || !h.V2()) && h.writable() })
})

// NoCgroups reports whether we are Bare, and nothing of a cgroup hierarchy was delegated to us.
var NoCgroups = sync.OnceValue(func() bool {
	all, _ := Hierarchies()
	return Bare() && len(all) == 0
})

func (h Hierarchy) writable() bool { return unix.Access(h.Dir, unix.W_OK) == nil }

func visibleHierarchies() ([]Hierarchy, error) {
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
				if rest, below := strings.CutPrefix(path+"/", strings.TrimSuffix(m.Root, "/")+"/"); below {
					h.own = "/" + strings.TrimSuffix(rest, "/")
				}
			}
		}
		slices.Sort(h.Controllers)
		device := [2]int{m.Major, m.Minor}
		switch i, seen := at[device]; {
		case !seen:
			at[device] = len(found)
			found = append(found, h)
		case h.Whole && !found[i].Whole, h.Dir == found[i].Dir: // it is mounted over that one
			found[i] = h
		}
	}
	return found, nil
}
