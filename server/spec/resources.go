package spec

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Resources converts limits; r may be nil. Zero means not set. oom_score_adj, for which zero is
// a value, is not a cgroup limit and only checked. CPU shares stay shares: libcontainer converts
// them to the weight of cgroup v2.
func Resources(r *cri.LinuxContainerResources, h Host) (*specs.LinuxResources, error) {
	out := &specs.LinuxResources{}
	if r == nil {
		return out, nil
	}
	if r.CpuPeriod < 0 || r.CpuShares < 0 {
		return nil, fault.Invalid.Errorf("cpu period %d and shares %d: neither may be negative", r.CpuPeriod, r.CpuShares)
	}
	if adj := r.OomScoreAdj; adj < -1000 || adj > 1000 { // proc_pid_oom_score_adj(5)
		return nil, fault.Invalid.Errorf("oom_score_adj %d is not between -1000 and 1000", adj)
	}
	cpu := &specs.LinuxCPU{
		Shares: set(uint64(r.CpuShares)),
		Quota:  set(r.CpuQuota),
		Period: set(uint64(r.CpuPeriod)),
		Cpus:   r.CpusetCpus,
		Mems:   r.CpusetMems,
	}
	if *cpu != (specs.LinuxCPU{}) {
		out.CPU = cpu
	}
	if err := memory(out, r, h); err != nil {
		return nil, err
	}
	for _, l := range r.HugepageLimits {
		if !h.Hugetlb {
			// The kubelet lists every page size with 0; only a real limit needs the controller.
			if l.Limit == 0 {
				continue
			}
			return nil, fault.Invalid.Errorf("hugepage limit of %s: this host has no hugetlb controller", l.PageSize)
		}
		out.HugepageLimits = append(out.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: l.PageSize, Limit: l.Limit})
	}
	if len(r.Unified) > 0 && (h.IDs == nil || h.CgroupV2) { // with IDs the host has v2 if it was delegated, else no cgroups
		if !h.CgroupV2 {
			return nil, fault.Invalid.Errorf("unified resources need cgroup v2; this host has v1")
		}
		for key := range r.Unified {
			if strings.Contains(key, "/") || !strings.Contains(key, ".") {
				return nil, fault.Invalid.Errorf("unified resource %q is not the name of a cgroup file", key)
			}
		}
		out.Unified = maps.Clone(r.Unified)
	}
	return out, nil
}

// memory sets the memory and swap limits. If CRI has no limit for memory and swap together, it
// is the memory limit: a container does not swap unless it is allowed to.
func memory(out *specs.LinuxResources, r *cri.LinuxContainerResources, h Host) error {
	limit, swap := r.MemoryLimitInBytes, r.MemorySwapLimitInBytes
	if limit == 0 && swap == 0 {
		return nil
	}
	switch {
	case swap > 0 && limit <= 0:
		return fault.Invalid.Errorf("memory and swap limit %d: there is no memory limit", swap)
	case swap > 0 && swap < limit:
		return fault.Invalid.Errorf("memory and swap limit %d is below the memory limit %d", swap, limit)
	}
	m := &specs.LinuxMemory{Limit: set(limit)}
	if h.SwapLimit {
		m.Swap = set(cmp.Or(swap, limit))
	}
	out.Memory = m
	return nil
}

// set returns a pointer to v, or nil for zero.
func set[T int64 | uint64](v T) *T {
	if v == 0 {
		return nil
	}
	return &v
}

// MergeResources returns old with the fields that are set in change; both may be nil. CRI's
// UpdateContainerResources leaves zero fields unchanged. The limit of memory and swap together
// follows that of memory if it allowed no swap.
func MergeResources(old, change *cri.LinuxContainerResources) *cri.LinuxContainerResources {
	out := &cri.LinuxContainerResources{}
	if old != nil {
		out = proto.Clone(old).(*cri.LinuxContainerResources)
	}
	if change == nil {
		return out
	}
	merge(&out.CpuPeriod, change.CpuPeriod)
	merge(&out.CpuQuota, change.CpuQuota)
	merge(&out.CpuShares, change.CpuShares)
	if swap := out.MemorySwapLimitInBytes; swap > 0 && swap == out.MemoryLimitInBytes { // no swap, unless requested
		merge(&out.MemorySwapLimitInBytes, change.MemoryLimitInBytes)
	}
	merge(&out.MemoryLimitInBytes, change.MemoryLimitInBytes)
	merge(&out.MemorySwapLimitInBytes, change.MemorySwapLimitInBytes)
	merge(&out.OomScoreAdj, change.OomScoreAdj)
	merge(&out.CpusetCpus, change.CpusetCpus)
	merge(&out.CpusetMems, change.CpusetMems)
	for _, l := range change.HugepageLimits {
		out.HugepageLimits = append(slices.DeleteFunc(out.HugepageLimits, func(old *cri.HugepageLimit) bool {
			return old.GetPageSize() == l.GetPageSize()
		}), l)
	}
	if out.Unified == nil && len(change.Unified) > 0 {
		out.Unified = map[string]string{}
	}
	maps.Copy(out.Unified, change.Unified)
	return out
}

func merge[T comparable](old *T, change T) {
	var zero T
	if change != zero {
		*old = change
	}
}

// CgroupsPath returns the name of a container's cgroup below the sandbox's parent: a path with
// the cgroupfs driver; "slice:prefix:name" with systemd's, which becomes the scope
// <prefix>-<name>.scope in that slice.
func CgroupsPath(parent, id string, systemd bool) string {
	if systemd {
		return path.Base(parent) + ":crisp:" + id
	}
	return path.Join("/", parent, id)
}
