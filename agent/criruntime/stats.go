package criruntime

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// PodStats returns the resource usage of a runtime's pods. If the runtime reports none for pods,
// a pod's usage is the sum of its containers', without network and processes. Some runtimes do
// not have the call, and containerd 1.6 fails it while one sandbox is not ready.
func PodStats(ctx context.Context, runtime internalapi.RuntimeService) ([]*cri.PodSandboxStats, error) {
	stats, err := runtime.ListPodSandboxStats(ctx, nil)
	if err == nil {
		return stats, nil
	}
	if code := status.Code(err); code != codes.Unimplemented && code != codes.Unknown {
		return nil, Fault(err)
	}
	sandboxes, err := runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return nil, Fault(err)
	}
	containers, err := runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, Fault(err)
	}
	list, err := runtime.ListContainerStats(ctx, nil)
	if err != nil {
		return nil, Fault(err)
	}
	return podStats(sandboxes, containers, list), nil
}

// podStats sums up the running containers of each ready sandbox.
func podStats(sandboxes []*cri.PodSandbox, containers []*cri.Container, list []*cri.ContainerStats) []*cri.PodSandboxStats {
	home := map[string]string{} // container → sandbox
	for _, c := range containers {
		if c.State == cri.ContainerState_CONTAINER_RUNNING { // containerd reports others too
			home[c.Id] = c.PodSandboxId
		}
	}
	of := map[string][]*cri.ContainerStats{}
	for _, s := range list {
		id := home[s.GetAttributes().GetId()]
		of[id] = append(of[id], s)
	}
	var pods []*cri.PodSandboxStats
	for _, sb := range sandboxes {
		if sb.State != cri.PodSandboxState_SANDBOX_READY {
			continue
		}
		mine := of[sb.Id]
		pods = append(pods, &cri.PodSandboxStats{
			Attributes: &cri.PodSandboxAttributes{Id: sb.Id, Metadata: sb.Metadata, Labels: sb.Labels, Annotations: sb.Annotations},
			Linux:      &cri.LinuxPodSandboxStats{Cpu: sumCPU(mine), Memory: sumMemory(mine), Containers: mine},
		})
	}
	return pods
}

func sumCPU(list []*cri.ContainerStats) *cri.CpuUsage {
	if len(list) == 0 {
		return nil
	}
	sum := &cri.CpuUsage{UsageCoreNanoSeconds: &cri.UInt64Value{}, UsageNanoCores: &cri.UInt64Value{}}
	for _, s := range list {
		sum.Timestamp = max(sum.Timestamp, s.GetCpu().GetTimestamp())
		sum.UsageCoreNanoSeconds.Value += s.GetCpu().GetUsageCoreNanoSeconds().GetValue()
		if rate := s.GetCpu().GetUsageNanoCores(); rate == nil {
			sum.UsageNanoCores = nil // one unknown value makes the sum unknown
		} else if sum.UsageNanoCores != nil {
			sum.UsageNanoCores.Value += rate.Value
		}
	}
	return sum
}

func sumMemory(list []*cri.ContainerStats) *cri.MemoryUsage {
	if len(list) == 0 {
		return nil
	}
	sum := &cri.MemoryUsage{}
	add := func(to **cri.UInt64Value, v *cri.UInt64Value) {
		if v == nil {
			return
		}
		if *to == nil {
			*to = &cri.UInt64Value{}
		}
		(*to).Value += v.Value
	}
	for _, s := range list {
		m := s.GetMemory()
		sum.Timestamp = max(sum.Timestamp, m.GetTimestamp())
		add(&sum.WorkingSetBytes, m.GetWorkingSetBytes())
		add(&sum.UsageBytes, m.GetUsageBytes())
		add(&sum.RssBytes, m.GetRssBytes())
		add(&sum.PageFaults, m.GetPageFaults())
		add(&sum.MajorPageFaults, m.GetMajorPageFaults())
	}
	return sum
}

// Rates returns how much CPU pods and containers use, in nanocores by the ID of the sandbox or the container:
// what the runtime says or, if it says nothing, the rate between two PodStats.
func Rates(first, second []*cri.PodSandboxStats) map[string]uint64 {
	before, rates := usage(first), map[string]uint64{}
	for id, now := range usage(second) {
		was := before[id]
		passed := now.GetTimestamp() - was.GetTimestamp()
		used, usedBefore := now.GetUsageCoreNanoSeconds().GetValue(), was.GetUsageCoreNanoSeconds().GetValue()
		switch known := now.GetUsageNanoCores(); {
		case known != nil:
			rates[id] = known.Value
		case was == nil || passed <= 0 || used < usedBefore: // it is new, or a container of the pod has gone
		default:
			rates[id] = uint64(float64(used-usedBefore) / float64(passed) * 1e9)
		}
	}
	return rates
}

// usage returns the CPU usage of pods and containers by the ID of the sandbox or the container.
func usage(list []*cri.PodSandboxStats) map[string]*cri.CpuUsage {
	of := map[string]*cri.CpuUsage{}
	for _, s := range list {
		of[s.GetAttributes().GetId()] = s.GetLinux().GetCpu()
		for _, c := range s.GetLinux().GetContainers() {
			of[c.GetAttributes().GetId()] = c.GetCpu()
		}
	}
	return of
}
