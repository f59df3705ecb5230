package crix

import (
	"fmt"
	"testing"
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
