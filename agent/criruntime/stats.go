package criruntime

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// PodStats lists what the pods of a runtime use. Where the runtime does not tell it of
// pods, a pod uses what its containers do; its network and its processes are not
// known then. There are runtimes without the call, and containerd 1.6 answers it
// with an error as long as there is one sandbox that is not ready.
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

// podStats sums up the containers that run in each sandbox that is ready.
func podStats(sandboxes []*cri.PodSandbox, containers []*cri.Container, list []*cri.ContainerStats) []*cri.PodSandboxStats {
	home := map[string]string{} // container → sandbox
	for _, c := range containers {
		if c.State == cri.ContainerState_CONTAINER_RUNNING { // containerd tells of others too
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
			sum.UsageNanoCores = nil // one that is not known makes the sum unknown
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
