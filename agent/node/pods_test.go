package node

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

// A failed pod occupies the node until its last container has ended. A pod without a status has not
// started yet.
func TestOver(t *testing.T) {
	running := []v1.ContainerStatus{{State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}
	for what, test := range map[string]struct {
		status *v1.PodStatus
		over   bool
	}{
		"no status":   {nil, false},
		"running":     {&v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: running}, false},
		"between":     {&v1.PodStatus{Phase: v1.PodRunning}, false},
		"ending":      {&v1.PodStatus{Phase: v1.PodFailed, ContainerStatuses: running}, false},
		"ending init": {&v1.PodStatus{Phase: v1.PodFailed, InitContainerStatuses: running}, false},
		"failed":      {&v1.PodStatus{Phase: v1.PodFailed}, true},
		"succeeded":   {&v1.PodStatus{Phase: v1.PodSucceeded}, true},
	} {
		if got := over(test.status); got != test.over {
			t.Errorf("%s: over is %v", what, got)
		}
	}
}
