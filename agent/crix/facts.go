package crix

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/cgroups"
)

// facts are what the translation of pods must know of the kernel.
type facts struct {
	memory    int64    // of the node, in bytes; 0 if unknown
	unified   bool     // cgroup v2 alone
	swap      bool     // swap can be limited
	selinux   bool     // SELinux is on
	hugePages []string // sizes, as in the names of the hugetlb cgroup: "2MB"
	masked    []string // paths that containers do not see
}

func readFacts() facts {
	f := facts{memory: memoryCapacity(), hugePages: slices.Sorted(slices.Values(cgroups.HugePageSizes())), masked: slices.Clone(maskedPaths)}
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	f.unified = err == nil
	swap := "/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"
	if f.unified {
		swap = filepath.Join("/sys/fs/cgroup", ownCgroup(), "memory.swap.max")
	}
	_, err = os.Stat(swap)
	f.swap = err == nil
	_, err = os.Stat("/sys/fs/selinux/enforce")
	f.selinux = err == nil
	// Their counters tell what the CPUs of the node are doing.
	throttles, _ := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle") // the pattern is good
	slices.SortFunc(throttles, func(a, b string) int { return cpuOf(a) - cpuOf(b) })
	f.masked = append(f.masked, throttles...)
	return f
}

func cpuOf(path string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(path)), "cpu")) // by the glob's pattern
	return n
}

// ownCgroup is the agent's own in the unified hierarchy; the root has no limits.
func ownCgroup() string {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return path
		}
	}
	return ""
}

// memoryCapacity returns MemTotal of /proc/meminfo in bytes, 0 if unknown.
func memoryCapacity() int64 {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	var kib int64
	for line := range strings.Lines(string(data)) {
		if n, err := fmt.Sscanf(line, "MemTotal: %d kB", &kib); n == 1 && err == nil {
			return kib << 10
		}
	}
	return 0
}
