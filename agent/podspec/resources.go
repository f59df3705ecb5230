package podspec

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Resources translates limits and requests as the kubelet does. Containers get no swap:
// memory and swap together are limited to the memory limit.
func (in *Input) Resources(c *v1.Container) *cri.LinuxContainerResources {
	pod, kernel := in.Pod, &in.Node.Kernel
	var request *resource.Quantity
	if q, ok := c.Resources.Requests[v1.ResourceCPU]; ok {
		request = &q
	}
	cpu, memory := *c.Resources.Limits.Cpu(), *c.Resources.Limits.Memory()
	if all := pod.Spec.Resources; all != nil {
		if cpu.IsZero() {
			cpu = *all.Limits.Cpu()
		}
		if memory.IsZero() {
			memory = *all.Limits.Memory()
		}
	}
	out := in.Node.limits(request, cpu, memory)
	out.OomScoreAdj = oomScoreAdj(pod, c, kernel.Memory)
	out.HugepageLimits = in.hugePageLimits(c)
	switch {
	case kernel.Swap && kernel.Unified:
		out.Unified["memory.swap.max"] = "0"
	case kernel.Swap:
		out.MemorySwapLimitInBytes = out.MemoryLimitInBytes
	}
	return out
}

// limits returns the resources that containers and sandboxes have in common. A nil request
// defaults to the limit.
func (n *Node) limits(request *resource.Quantity, cpu, memory resource.Quantity) *cri.LinuxContainerResources {
	out := &cri.LinuxContainerResources{MemoryLimitInBytes: memory.Value()}
	out.CpuShares = int64(CPUShares(cmp.Or(request, &cpu).MilliValue()))
	if !n.NoCPUQuota {
		out.CpuPeriod, out.CpuQuota = CPUPeriod, CPUQuota(cpu.MilliValue())
	}
	if n.Kernel.Unified { // the OOM killer ends all processes of a container
		out.Unified = map[string]string{"memory.oom.group": "1"}
	}
	return out
}

// PodResources returns the resources of all containers together and the pod's overhead, for
// runtimes that size a sandbox by them.
func (in *Input) PodResources() (resources, overhead *cri.LinuxContainerResources) {
	requests, limits := Requests(in.Pod, nil), Limits(in.Pod, nil)
	var request *resource.Quantity
	if q, ok := requests[v1.ResourceCPU]; ok {
		request = &q
	}
	resources = in.Node.limits(request, limits[v1.ResourceCPU], limits[v1.ResourceMemory])
	overhead = &cri.LinuxContainerResources{}
	if o := in.Overhead; o != nil {
		cpu := *o.Cpu()
		overhead = in.Node.limits(&cpu, cpu, *o.Memory())
	}
	return resources, overhead
}

// Requests returns the requests of a pod with its overhead: the sum for its containers and
// sidecars, or that for an init container and the sidecars before it, whichever is more. The
// resources of the pod as a whole override both.
func Requests(pod *v1.Pod, overhead v1.ResourceList) v1.ResourceList {
	return helper.PodRequests(with(pod, overhead), helper.PodResourcesOptions{})
}

// Limits returns the limits of a pod, likewise. The overhead is added only to existing limits.
func Limits(pod *v1.Pod, overhead v1.ResourceList) v1.ResourceList {
	return helper.PodLimits(with(pod, overhead), helper.PodResourcesOptions{})
}

// with returns the pod with this overhead, and with requests for the huge pages that it limits
// as a whole: huge pages cannot be overcommitted.
func with(pod *v1.Pod, overhead v1.ResourceList) *v1.Pod {
	pod = &v1.Pod{Spec: pod.Spec}
	pod.Spec.Overhead = overhead
	if all := pod.Spec.Resources.DeepCopy(); all != nil {
		pod.Spec.Resources = all
		if all.Requests == nil {
			all.Requests = v1.ResourceList{}
		}
		for name, q := range all.Limits {
			if manifest.IsHugePages(name) {
				all.Requests[name] = q
			}
		}
	}
	return pod
}

// Limited reports whether the pod as a whole has a limit of the resource or, if its own
// resources do not name it, each of its containers and init containers.
func Limited(pod *v1.Pod, name v1.ResourceName) bool {
	if all := pod.Spec.Resources; all != nil {
		if q, ok := all.Limits[name]; ok {
			return !q.IsZero()
		}
	}
	for c := range podsync.Containers(&pod.Spec) {
		if q := c.Resources.Limits[name]; q.IsZero() {
			return false
		}
	}
	return true
}

// hugePageLimits returns a limit in bytes for each size that the kernel knows, 0 for those that
// the container does not request.
func (in *Input) hugePageLimits(c *v1.Container) []*cri.HugepageLimit {
	asked := Pages{}
	if in.Pod.Spec.Resources != nil {
		asked = HugePages(in.Pod.Spec.Resources.Limits)
	}
	maps.Copy(asked, HugePages(c.Resources.Limits))
	var out []*cri.HugepageLimit
	for _, size := range in.Node.Kernel.HugePages {
		out = append(out, &cri.HugepageLimit{PageSize: size, Limit: asked[size]})
	}
	return out
}

const nodeCritical = 2_000_001_000

// oomScoreAdj returns the kubelet's value: -997 for a guaranteed pod, 1000 for a best-effort
// one, and otherwise a value in between that falls as the container requests more of the node's
// memory. A sidecar's is at most the largest of the pod's regular containers.
func oomScoreAdj(pod *v1.Pod, c *v1.Container, capacity int64) int64 {
	const guaranteed, bestEffort = -997, 1000
	if podsync.Priority(pod) >= nodeCritical {
		return guaranteed
	}
	switch status.QOS(pod) {
	case v1.PodQOSGuaranteed:
		return guaranteed
	case v1.PodQOSBestEffort:
		return bestEffort
	}
	if capacity <= 0 {
		return bestEffort - 1
	}
	share := unreserved(pod)
	score := func(request int64) int64 { return 1000 - 1000*(request+share)/capacity }
	adj := score(c.Resources.Requests.Memory().Value())
	if slices.ContainsFunc(pod.Spec.InitContainers, func(i v1.Container) bool { return i.Name == c.Name && podsync.IsSidecar(&i) }) {
		least := int64(-1)
		for i := range pod.Spec.Containers {
			if r := pod.Spec.Containers[i].Resources.Requests.Memory().Value(); least < 0 || r < least {
				least = r
			}
		}
		adj = min(adj, score(max(least, 0)))
	}
	return min(max(adj, 1000+guaranteed), bestEffort-1)
}

// unreserved returns each container's share of the memory that the pod requests as a whole
// beyond its containers' requests. Init containers have a share too.
func unreserved(pod *v1.Pod) int64 {
	if pod.Spec.Resources == nil || pod.Spec.Resources.Requests.Memory().IsZero() {
		return 0
	}
	total := helper.AggregateContainerRequests(pod, helper.PodResourcesOptions{})
	left := pod.Spec.Resources.Requests.Memory().Value() - total.Memory().Value()
	return max(left, 0) / int64(len(pod.Spec.Containers)+len(pod.Spec.InitContainers))
}

// MostMemory returns the maximum memory of a pod, in bytes: its limit, or the node's allocatable
// memory if that is less or there is no limit; 0 if unknown.
func (in *Input) MostMemory() int64 {
	most := in.Node.Allocatable[v1.ResourceMemory]
	if limit := Limits(in.Pod, in.Overhead)[v1.ResourceMemory]; Limited(in.Pod, v1.ResourceMemory) && (most.IsZero() || limit.Cmp(most) < 0) {
		most = limit
	}
	return most.Value()
}

// ResourcesOf converts the resources that the runtime reports back to limits and requests;
// nil if it reports none.
func ResourcesOf(r *cri.LinuxContainerResources) *v1.ResourceRequirements {
	out := &v1.ResourceRequirements{Limits: v1.ResourceList{}, Requests: v1.ResourceList{}}
	if r.GetCpuPeriod() > 0 && r.GetCpuQuota() > 0 {
		out.Limits[v1.ResourceCPU] = *resource.NewMilliQuantity(r.CpuQuota*1000/r.CpuPeriod, resource.DecimalSI)
	}
	if r.GetCpuShares() > MinShares {
		milli := (r.CpuShares*1000 + 1023) / 1024 // the least number with these shares
		out.Requests[v1.ResourceCPU] = *resource.NewMilliQuantity(milli, resource.DecimalSI)
	}
	if r.GetMemoryLimitInBytes() > 0 {
		out.Limits[v1.ResourceMemory] = *resource.NewQuantity(r.MemoryLimitInBytes, resource.BinarySI)
	}
	if len(out.Limits)+len(out.Requests) == 0 {
		return nil
	}
	return out
}

// The bounds of the kernel and the kubelet.
const (
	MinShares = 2 // the least that the kernel accepts
	maxShares = 262_144
	minQuota  = 1_000   // µs; the least that the kernel accepts (sched-bwc.rst)
	CPUPeriod = 100_000 // µs; the period of CPU quotas
)

func CPUShares(milli int64) uint64 { return uint64(min(max(milli*1024/1000, MinShares), maxShares)) }

// CPUQuota returns the CPU quota for a number of milli-CPUs, in µs per CPUPeriod; 0 is no limit.
func CPUQuota(milli int64) int64 {
	if milli == 0 {
		return 0
	}
	return max(milli*CPUPeriod/1000, minQuota)
}

// Pages maps sizes of huge pages to bytes. A size is written as in the names of the hugetlb
// controller's files: "2MB".
type Pages map[string]uint64

// PageSize returns the kernel's name for a size of huge pages in bytes.
func PageSize(bytes int64) string {
	units := []string{"B", "KB", "MB", "GB"}
	for bytes >= 1024 && len(units) > 1 {
		bytes, units = bytes/1024, units[1:]
	}
	return fmt.Sprintf("%d%s", bytes, units[0])
}

func HugePages(of v1.ResourceList) Pages {
	pages := Pages{}
	for name, q := range of {
		text, is := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix)
		if size, err := resource.ParseQuantity(text); is && err == nil {
			pages[PageSize(size.Value())] += uint64(q.Value())
		}
	}
	return pages
}
