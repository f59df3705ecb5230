package api

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// A sidecar can be restarted like any running container; an init container cannot.
func TestRestartable(t *testing.T) {
	pod := &v1.Pod{}
	pod.Spec.InitContainers = []v1.Container{{Name: "init"}, {Name: "proxy", RestartPolicy: new(v1.ContainerRestartPolicyAlways)}}
	pod.Spec.Containers = []v1.Container{{Name: "app"}, {Name: "ended"}, {Name: "unknown"}}
	running := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	pod.Status.InitContainerStatuses = []v1.ContainerStatus{{Name: "init", ContainerID: "crisp://0", State: running}, {Name: "proxy", ContainerID: "crisp://1", State: running}}
	pod.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "app", ContainerID: "crisp://2", State: running}, {Name: "ended", ContainerID: "crisp://3"}}
	for container, want := range map[string]string{"": "[proxy app] [1 2]", "proxy": "[proxy] [1]", "app": "[app] [2]", "init": "[] []", "ended": "[] []"} {
		names, ids := restartable(pod, container)
		if got := fmt.Sprint(names, ids); got != want {
			t.Errorf("%q: got %s, want %s", container, got, want)
		}
	}
}
