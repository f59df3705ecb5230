package podspec

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// On cgroup v2 a container has no swap, and ends as a whole when it runs out of
// memory; so does a sandbox that has a size.
func TestUnifiedResources(t *testing.T) {
	in := input(t, `
  containers: [{name: a, image: i, resources: {limits: {memory: 64Mi}}}]
`)
	in.Overhead = v1.ResourceList{v1.ResourceCPU: resource.MustParse("10m"), v1.ResourceMemory: resource.MustParse("8Mi")}
	for _, unified := range []bool{false, true} {
		in.Node.Kernel.Unified = unified
		container := in.Resources(&in.Pod.Spec.Containers[0])
		sandbox, overhead := in.PodResources()
		want := [3]string{"map[]", "map[]", "map[]"}
		if unified {
			want = [3]string{"map[memory.oom.group:1 memory.swap.max:0]", "map[memory.oom.group:1]", "map[memory.oom.group:1]"}
		}
		got := [3]string{fmt.Sprint(container.Unified), fmt.Sprint(sandbox.Unified), fmt.Sprint(overhead.Unified)}
		if got != want || (container.MemorySwapLimitInBytes == container.MemoryLimitInBytes) == unified {
			t.Errorf("unified %v: %v, swap %d; want %v", unified, got, container.MemorySwapLimitInBytes, want)
		}
	}
}

// CPU limits need not be enforced.
func TestCPUQuota(t *testing.T) {
	var n Node
	half := resource.MustParse("500m")
	if r := n.limits(nil, half, resource.Quantity{}); r.CpuQuota != 50000 || r.CpuPeriod != 100000 || r.CpuShares != 512 {
		t.Errorf("enforced: %v", r)
	}
	n.NoCPUQuota = true
	if r := n.limits(nil, half, resource.Quantity{}); r.CpuQuota != 0 || r.CpuPeriod != 0 || r.CpuShares != 512 {
		t.Errorf("not enforced: %v", r)
	}
}

// What a pod can have of memory is its limit, and else what all pods can.
func TestMemoryOfPod(t *testing.T) {
	for _, test := range []struct{ spec, want string }{
		{"  containers: [{name: a, image: i}]\n", "14Gi"},
		{"  containers: [{name: a, image: i, resources: {limits: {memory: 64Mi}}}, {name: b, image: i}]\n", "14Gi"},
		{"  containers: [{name: a, image: i, resources: {limits: {memory: 64Mi}}}]\n  initContainers: [{name: s, image: i, restartPolicy: Always, resources: {limits: {memory: 8Mi}}}]\n", "72Mi"},
		{"  containers: [{name: a, image: i, resources: {limits: {memory: 20Gi}}}]\n", "14Gi"},
		{"  resources: {limits: {memory: 32Mi}}\n  containers: [{name: a, image: i}]\n", "32Mi"},
	} {
		if got, want := input(t, test.spec).MostMemory(), resource.MustParse(test.want); got != want.Value() {
			t.Errorf("%s has %d bytes, want %s", test.spec, got, test.want)
		}
	}
	in := input(t, "  containers: [{name: a, image: i}]\n")
	in.Node.Allocatable = nil
	if got := in.MostMemory(); got != 0 {
		t.Errorf("%d bytes of a node that is not known", got)
	}
}
