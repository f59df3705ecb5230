package crix

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
)

// On cgroup v2 a container has no swap, and ends as a whole when it runs out of
// memory; so does a sandbox that has a size.
func TestUnifiedResources(t *testing.T) {
	d := driver(t)
	pod := read(t, `
  overhead: {cpu: 10m, memory: 8Mi}
  containers: [{name: a, image: i, resources: {limits: {memory: 64Mi}}}]
`)
	for _, unified := range []bool{false, true} {
		d.node.unified = unified
		container := d.resources(pod, &pod.Spec.Containers[0])
		sandbox, overhead := d.podResources(pod)
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

// What a pod can have of memory is its limit, and else what all pods can.
func TestMemoryOfPod(t *testing.T) {
	d := driver(t)
	for _, test := range []struct{ spec, want string }{
		{"  containers: [{name: a, image: i}]\n", "14Gi"},
		{"  containers: [{name: a, image: i, resources: {limits: {memory: 64Mi}}}, {name: b, image: i}]\n", "14Gi"},
		{"  containers: [{name: a, image: i, resources: {limits: {memory: 64Mi}}}]\n  initContainers: [{name: s, image: i, restartPolicy: Always, resources: {limits: {memory: 8Mi}}}]\n", "72Mi"},
		{"  containers: [{name: a, image: i, resources: {limits: {memory: 20Gi}}}]\n", "14Gi"},
		{"  resources: {limits: {memory: 32Mi}}\n  containers: [{name: a, image: i}]\n", "32Mi"},
	} {
		if got, want := (shown{d}).Memory(read(t, test.spec)), resource.MustParse(test.want); got != want.Value() {
			t.Errorf("%s has %d bytes, want %s", test.spec, got, test.want)
		}
	}
	d.Allocatable = nil
	if got := (shown{d}).Memory(read(t, "  containers: [{name: a, image: i}]\n")); got != 0 {
		t.Errorf("%d bytes of a node that is not known", got)
	}
}
