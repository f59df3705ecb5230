package criruntime

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/cgroups"

	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/internal/kernel"
)

func readKernel() podspec.Kernel {
	k := podspec.Kernel{Memory: memoryCapacity(), HugePages: slices.Sorted(slices.Values(cgroups.HugePageSizes()))}
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	k.Unified = err == nil
	swap := "/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"
	if k.Unified {
		swap = filepath.Join(ownCgroup(), "memory.swap.max")
	}
	_, err = os.Stat(swap)
	k.Swap = err == nil
	_, err = os.Stat("/sys/fs/selinux/enforce")
	k.SELinux = err == nil
	k.Throttles, _ = filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle") // the pattern is good
	slices.SortFunc(k.Throttles, func(a, b string) int { return cpuOf(a) - cpuOf(b) })
	return k
}

func cpuOf(path string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(path)), "cpu")) // by the glob's pattern
	return n
}

// ownCgroup is the agent's own in the unified hierarchy; the root has no limits.
func ownCgroup() string {
	all, _ := kernel.Hierarchies()
	for _, h := range all {
		if h.V2() {
			return h.Own()
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
