package kernel

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// MemoryLimit returns the lowest memory limit of this process's cgroups, in bytes, with the file
// that has it; 0 and "" if none is lower than the machine's memory. A limit of a cgroup above counts,
// as far as it can be seen: in a cgroup namespace, or where only a part of the hierarchy is mounted,
// nothing is above its root.
func MemoryLimit() (limit int64, file string) {
	all, err := Hierarchies()
	if err != nil {
		return 0, ""
	}
	return memoryLimit(all, TotalMemory())
}

func memoryLimit(all []Hierarchy, total int64) (limit int64, file string) {
	for _, h := range all {
		var names []string
		switch {
		case h.V2():
			names = []string{"memory.max", "memory.high"} // above the latter the kernel slows it down
		case slices.Contains(h.Controllers, "memory"):
			names = []string{"memory.limit_in_bytes"}
		}
		top := filepath.Clean(h.Dir)
		for dir := h.Own(); names != nil && below(dir, top); dir = filepath.Dir(dir) {
			for _, name := range names {
				path := filepath.Join(dir, name)
				n, err := strconv.ParseInt(strings.TrimSpace(read(path)), 10, 64) // not "max", nor v1's 2^63 without a page
				if err == nil && n < total && (file == "" || n < limit) {
					limit, file = n, path
				}
			}
		}
	}
	return limit, file
}

// below reports whether dir is top or below it.
func below(dir, top string) bool {
	return dir == top || strings.HasPrefix(dir, strings.TrimSuffix(top, "/")+"/")
}

// LimitHeap makes Go collect garbage more often as this process approaches the memory limit of its
// cgroups: at nine tenths of it, which leaves room for what is not Go's. It does nothing if there is
// none, or if GOMEMLIMIT is set: that is Go's own. It returns Go's new limit in bytes, 0 if none was
// set, and the file that has the cgroups'.
func LimitHeap() (bytes int64, file string) {
	if _, set := os.LookupEnv("GOMEMLIMIT"); set {
		return 0, ""
	}
	limit, file := MemoryLimit()
	if limit == 0 {
		return 0, ""
	}
	debug.SetMemoryLimit(limit / 10 * 9)
	return limit / 10 * 9, file
}
