package status

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

// A pod of which one container is done and another runs is "Running" to kubectl only
// while it is ready.
func TestWordOfHalfDone(t *testing.T) {
	for ready, want := range map[v1.ConditionStatus]string{v1.ConditionTrue: "Running", v1.ConditionFalse: "NotReady"} {
		pod := &v1.Pod{Status: v1.PodStatus{
			Phase:      v1.PodRunning,
			Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: ready}},
			ContainerStatuses: []v1.ContainerStatus{
				{State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{Reason: "Completed"}}},
				{Ready: true, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}},
			},
		}}
		if got := Word(pod); got != want {
			t.Errorf("Ready=%s: %s, want %s", ready, got, want)
		}
	}
}
