package criruntime

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A pod's usage is the sum of its containers'. If one of them has no rate, neither has the pod: an
// incomplete sum would mislead.
func TestPodStatsOfContainers(t *testing.T) {
	const running = cri.ContainerState_CONTAINER_RUNNING
	number := func(v uint64) *cri.UInt64Value { return &cri.UInt64Value{Value: v} }
	stats := func(id string, at int64, cpu, memory uint64, rate *cri.UInt64Value) *cri.ContainerStats {
		return &cri.ContainerStats{
			Attributes: &cri.ContainerAttributes{Id: id},
			Cpu:        &cri.CpuUsage{Timestamp: at, UsageCoreNanoSeconds: number(cpu), UsageNanoCores: rate},
			Memory:     &cri.MemoryUsage{Timestamp: at, WorkingSetBytes: number(memory)},
		}
	}
	a, b, c := stats("a", 5, 100, 1000, number(7)), stats("b", 6, 20, 300, nil), stats("c", 6, 1, 2, number(3))
	web, db := &cri.PodSandboxMetadata{Name: "web"}, &cri.PodSandboxMetadata{Name: "db"}
	got := podStats(
		[]*cri.PodSandbox{{Id: "1", Metadata: web}, {Id: "2", Metadata: db}, {Id: "3", State: cri.PodSandboxState_SANDBOX_NOTREADY}, {Id: "4"}},
		[]*cri.Container{{Id: "a", PodSandboxId: "1", State: running}, {Id: "b", PodSandboxId: "1", State: running}, {Id: "c", PodSandboxId: "2", State: running}, {Id: "d", PodSandboxId: "2", State: cri.ContainerState_CONTAINER_EXITED}},
		[]*cri.ContainerStats{a, b, c, stats("d", 9, 9, 9, number(9))})
	pod := func(id string, m *cri.PodSandboxMetadata, cpu *cri.CpuUsage, memory *cri.MemoryUsage, of ...*cri.ContainerStats) *cri.PodSandboxStats {
		return &cri.PodSandboxStats{Attributes: &cri.PodSandboxAttributes{Id: id, Metadata: m}, Linux: &cri.LinuxPodSandboxStats{Cpu: cpu, Memory: memory, Containers: of}}
	}
	want := []*cri.PodSandboxStats{
		pod("1", web, &cri.CpuUsage{Timestamp: 6, UsageCoreNanoSeconds: number(120)}, &cri.MemoryUsage{Timestamp: 6, WorkingSetBytes: number(1300)}, a, b),
		pod("2", db, &cri.CpuUsage{Timestamp: 6, UsageCoreNanoSeconds: number(1), UsageNanoCores: number(3)}, &cri.MemoryUsage{Timestamp: 6, WorkingSetBytes: number(2)}, c),
		pod("4", nil, nil, nil),
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}
