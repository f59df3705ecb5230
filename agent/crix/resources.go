package crix

import (
	"fmt"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	cpuPeriod = 100_000 // µs; the kernel's and the kubelet's default
	minQuota  = 1_000   // µs; the least the kernel takes (sched-bwc.rst)
	minShares = 2       // the least the kernel takes
	maxShares = 262_144
)

// resources translates limits and requests as the kubelet does. Swap is not
// given: memory and swap together are limited to the memory limit.
func (d *Driver) resources(pod *v1.Pod, c *v1.Container) *cri.LinuxContainerResources {
	out := &cri.LinuxContainerResources{
		CpuPeriod:   cpuPeriod,
		CpuShares:   shares(c.Resources.Requests.Cpu()),
		CpuQuota:    quota(c.Resources.Limits.Cpu()),
		OomScoreAdj: oomScoreAdj(pod, c, d.memory),
	}
	if limit := c.Resources.Limits.Memory().Value(); limit > 0 {
		out.MemoryLimitInBytes = limit
		out.MemorySwapLimitInBytes = limit
	}
	for name, q := range c.Resources.Limits {
		if size, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix); ok {
			if page, err := resource.ParseQuantity(size); err == nil {
				out.HugepageLimits = append(out.HugepageLimits, &cri.HugepageLimit{PageSize: pageSize(page.Value()), Limit: uint64(q.Value())})
			}
		}
	}
	return out
}

// podResources is the sum over the containers, for information: the runtime makes
// the pod's cgroup.
func (d *Driver) podResources(pod *v1.Pod) *cri.LinuxContainerResources {
	var request, limit resource.Quantity
	var memory int64
	limited := [2]bool{true, true}
	for _, c := range pod.Spec.Containers {
		request.Add(*c.Resources.Requests.Cpu())
		limit.Add(*c.Resources.Limits.Cpu())
		memory += c.Resources.Limits.Memory().Value()
		limited[0] = limited[0] && !c.Resources.Limits.Cpu().IsZero()
		limited[1] = limited[1] && !c.Resources.Limits.Memory().IsZero()
	}
	out := &cri.LinuxContainerResources{CpuPeriod: cpuPeriod, CpuShares: shares(&request)}
	if limited[0] {
		out.CpuQuota = quota(&limit)
	}
	if limited[1] {
		out.MemoryLimitInBytes = memory
	}
	return out
}

func shares(cpu *resource.Quantity) int64 {
	return min(max(cpu.MilliValue()*1024/1000, minShares), maxShares)
}

// quota is in µs for each cpuPeriod; 0 leaves the CPU unlimited.
func quota(cpu *resource.Quantity) int64 {
	if cpu.IsZero() {
		return 0
	}
	return max(cpu.MilliValue()*cpuPeriod/1000, minQuota)
}

// pageSize is how the kernel writes a size in the names of the hugetlb cgroup.
func pageSize(bytes int64) string {
	for _, unit := range []struct {
		name string
		size int64
	}{{"GB", 1 << 30}, {"MB", 1 << 20}, {"KB", 1 << 10}} {
		if bytes >= unit.size {
			return fmt.Sprintf("%d%s", bytes/unit.size, unit.name)
		}
	}
	return fmt.Sprintf("%dB", bytes)
}

// oomScoreAdj is the kubelet's: -997 for a pod that has reserved all it may use,
// 1000 for one that has reserved nothing, and in between the less the more of the
// node's memory the container has reserved.
func oomScoreAdj(pod *v1.Pod, c *v1.Container, capacity int64) int64 {
	const guaranteed, bestEffort = -997, 1000
	switch qosClass(pod) {
	case v1.PodQOSGuaranteed:
		return guaranteed
	case v1.PodQOSBestEffort:
		return bestEffort
	}
	adj := int64(bestEffort)
	if capacity > 0 {
		adj -= 1000 * c.Resources.Requests.Memory().Value() / capacity
	}
	return min(max(adj, 1000+guaranteed), bestEffort-1)
}

// qosClass follows from the CPU and memory of the containers.
func qosClass(pod *v1.Pod) v1.PodQOSClass {
	guaranteed, bestEffort := true, true
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			r := &list[i].Resources
			for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
				limit, request := r.Limits[name], r.Requests[name]
				bestEffort = bestEffort && limit.IsZero() && request.IsZero()
				guaranteed = guaranteed && !limit.IsZero() && limit.Cmp(request) == 0
			}
		}
	}
	switch {
	case bestEffort:
		return v1.PodQOSBestEffort
	case guaranteed:
		return v1.PodQOSGuaranteed
	}
	return v1.PodQOSBurstable
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
