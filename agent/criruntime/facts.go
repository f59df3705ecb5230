package criruntime

import (
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
	k := podspec.Kernel{Memory: kernel.TotalMemory(), HugePages: slices.Sorted(slices.Values(cgroups.HugePageSizes()))}
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	k.Unified = err == nil
	k.Swap = kernel.SwapLimit()
	_, err = os.Stat("/sys/fs/selinux/enforce")
	k.SELinux = err == nil
	k.Throttles, _ = filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle") // no error: the pattern is valid
	slices.SortFunc(k.Throttles, func(a, b string) int { return cpuOf(a) - cpuOf(b) })
	return k
}

func cpuOf(path string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(path)), "cpu")) // the glob's pattern ensures a number
	return n
}
