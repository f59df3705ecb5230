package kernel

import (
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// LimitHeap makes Go collect garbage more often as this process approaches the lowest memory limit of
// its cgroups: from nine tenths of it on, which leaves room for what is not Go's. GOMEMLIMIT, Go's own,
// has precedence.
func LimitHeap(log *slog.Logger) {
	all, err := Hierarchies()
	if _, set := os.LookupEnv("GOMEMLIMIT"); set || err != nil {
		return
	}
	if limit, file := memoryLimit(all, TotalMemory()); file != "" {
		debug.SetMemoryLimit(limit / 10 * 9)
		log.Info("heap was limited", "bytes", limit/10*9, "by", file)
	}
}

// memoryLimit returns the lowest memory limit of our cgroups, and of those above as far as they can be
// seen, in bytes, with the file that has it; "" if none is lower than total.
func memoryLimit(all []Hierarchy, total int64) (limit int64, file string) {
	limit = total
	for _, h := range all {
		var names []string
		switch {
		case h.V2():
			names = []string{"memory.max", "memory.high"} // above the latter the kernel slows us down
		case slices.Contains(h.Controllers, "memory"):
			names = []string{"memory.limit_in_bytes"}
		}
		top := filepath.Clean(h.Dir)
		for dir := h.Own(); dir == top || strings.HasPrefix(dir, top+"/"); dir = filepath.Dir(dir) {
			for _, name := range names {
				path := filepath.Join(dir, name)
				n, err := strconv.ParseInt(strings.TrimSpace(read(path)), 10, 64) // not "max"
				if err == nil && n < limit {
					limit, file = n, path
				}
			}
		}
	}
	return limit, file
}
