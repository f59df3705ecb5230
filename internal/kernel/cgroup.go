package kernel

import (
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// probeCgroups examines the hierarchy mounted at root. On a hybrid host, with v1 controllers at
// root and an empty v2 in root/unified, v1 counts.
func (f *Features) probeCgroups(root string) {
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
