package kernel

import (
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// probeCgroups looks at the hierarchy mounted at root. On a hybrid host, where
// v1 controllers are at root and an empty v2 in root/unified, v1 is what is used.
func (f *Features) probeCgroups(root string) {
	var fs unix.Statfs_t
	f.CgroupV2 = unix.Statfs(root, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC
	if !f.CgroupV2 {
		f.Controllers = enabledV1(read("/proc/cgroups"), func(name string) bool { return exists(filepath.Join(root, name)) })
		f.SwapLimit = exists(filepath.Join(root, "memory", "memory.memsw.limit_in_bytes"))
		return
	}
	f.Controllers = strings.Fields(read(filepath.Join(root, "cgroup.controllers")))
	// The root cgroup has neither file; our own, or the first one below, does.
	dirs, _ := filepath.Glob(filepath.Join(root, "*/"))
	all, _ := Hierarchies()
	for _, h := range all {
		dirs = append(dirs, h.Own())
	}
	for _, dir := range dirs {
		f.SwapLimit = f.SwapLimit || exists(filepath.Join(dir, "memory.swap.max"))
		f.CgroupKill = f.CgroupKill || exists(filepath.Join(dir, "cgroup.kill"))
	}
	f.CgroupKill = f.CgroupKill || f.AtLeast(5, 14)
}

// enabledV1 lists the controllers of a /proc/cgroups that are enabled and mounted.
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

// Has tells whether a cgroup controller can be used.
func (f Features) Has(controller string) bool { return slices.Contains(f.Controllers, controller) }
