package status

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RESTARTS has the time of the last restart: of the init containers while they run, and later of
// the containers.
func TestRestarts(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	after := func(restarts int32, ago time.Duration) v1.ContainerStatus {
		s := v1.ContainerStatus{RestartCount: restarts}
		if ago > 0 {
			s.LastTerminationState.Terminated = &v1.ContainerStateTerminated{FinishedAt: metav1.NewTime(now.Add(-ago))}
		}
		return s
	}
	for _, test := range []struct {
		initialized v1.ConditionStatus
		init, main  []v1.ContainerStatus
		want        string
	}{
		{v1.ConditionTrue, nil, []v1.ContainerStatus{after(0, 0)}, "0"},
		{v1.ConditionTrue, nil, []v1.ContainerStatus{after(3, 5*time.Minute)}, "3 (5m ago)"},
		{v1.ConditionTrue, nil, []v1.ContainerStatus{after(1, 26*time.Hour), after(2, 90*time.Second)}, "3 (90s ago)"},
		{v1.ConditionTrue, nil, []v1.ContainerStatus{after(2, 0)}, "2"},           // the time is unknown
		{v1.ConditionTrue, nil, []v1.ContainerStatus{after(0, time.Minute)}, "0"}, // in an earlier sandbox
		{v1.ConditionTrue, []v1.ContainerStatus{after(4, time.Second), after(1, time.Hour)}, []v1.ContainerStatus{after(2, 2*time.Hour)}, "3 (60m ago)"},
		{v1.ConditionFalse, []v1.ContainerStatus{after(4, time.Second), after(1, time.Hour)}, []v1.ContainerStatus{after(0, 0)}, "5 (1s ago)"},
	} {
		pod := &v1.Pod{Status: v1.PodStatus{
			Conditions:            []v1.PodCondition{{Type: v1.PodInitialized, Status: test.initialized}},
			InitContainerStatuses: test.init, ContainerStatuses: test.main,
		}}
		pod.Spec.InitContainers = []v1.Container{{Name: "once"}, {Name: "side", RestartPolicy: new(v1.ContainerRestartPolicyAlways)}}
		if got := Restarts(pod, now); got != test.want {
			t.Errorf("initialized %s, %v, %v: %s, want %s", test.initialized, test.init, test.main, got, test.want)
		}
	}
}

// kubectl shows a pod with one completed and one running container as "Running" only while it is
// ready.
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

// A started sidecar lets the next containers start, ready or not.
func TestWordOfUnreadySidecar(t *testing.T) {
	started := true
	pod := &v1.Pod{Status: v1.PodStatus{
		Phase:                 v1.PodPending,
		InitContainerStatuses: []v1.ContainerStatus{{Started: &started, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}},
		ContainerStatuses:     []v1.ContainerStatus{{State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}},
	}}
	pod.Spec.InitContainers = []v1.Container{{Name: "side", RestartPolicy: new(v1.ContainerRestartPolicyAlways)}}
	if got, want := Word(pod), "ImagePullBackOff"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	started = false
	if got, want := Word(pod), "Init:0/1"; got != want {
		t.Errorf("before it has started: %s, want %s", got, want)
	}
}

// A sidecar is stopped when the containers have finished, often with an exit code other than 0. It
// does not count as a failed init container, but one that fails while the containers run does.
func TestWordOfEndedSidecar(t *testing.T) {
	pod := &v1.Pod{Status: v1.PodStatus{
		Phase:                 v1.PodSucceeded,
		Conditions:            []v1.PodCondition{{Type: v1.PodInitialized, Status: v1.ConditionTrue}},
		InitContainerStatuses: []v1.ContainerStatus{{State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 143, Reason: "Error"}}}},
		ContainerStatuses:     []v1.ContainerStatus{{State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{Reason: "Completed"}}}},
	}}
	pod.Spec.InitContainers = []v1.Container{{Name: "side", RestartPolicy: new(v1.ContainerRestartPolicyAlways)}}
	if got, want := Word(pod), "Completed"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	pod.Status.Phase = v1.PodRunning
	pod.Status.InitContainerStatuses[0].State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	pod.Status.ContainerStatuses[0] = v1.ContainerStatus{Ready: true, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}
	if got, want := Word(pod), "Init:CrashLoopBackOff"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
