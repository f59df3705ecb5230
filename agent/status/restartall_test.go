package status_test

import (
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
)

// While all containers of a pod are restarted its phase is Running, whatever their policies: a
// container that was killed for the restart has not failed.
func TestRestartAllContainers(t *testing.T) {
	p := pod(v1.RestartPolicyNever, true)
	p.Spec.Containers[0].RestartPolicy = new(v1.ContainerRestartPolicyNever)
	p.Spec.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{{
		Action:    v1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
	}}
	init := p.Spec.InitContainers[0].Name
	var s *v1.PodStatus
	for _, step := range []struct {
		name       string
		containers []podsync.Container
		condition  string
	}{
		{"all run", []podsync.Container{exited(init, 0), running("a"), running("b")}, "AllContainersRestarting=False"},
		{"one exits", []podsync.Container{exited(init, 0), exited("a", 42), running("b")}, "AllContainersRestarting=True:RestartAllContainersStarted"},
		{"the other is killed", []podsync.Container{exited(init, 0), exited("a", 42), exited("b", 137)}, "AllContainersRestarting=True"},
		{"all but the cause are gone", []podsync.Container{exited("a", 42)}, "AllContainersRestarting=True"},
		{"all are gone", nil, "AllContainersRestarting=False"},
		{"nothing has begun", nil, "AllContainersRestarting=False"},
	} {
		now := status.Of(p, in("x", step.containers...), s, status.Node{}, now)
		if now.Phase != v1.PodRunning || !strings.Contains(conditions(now), step.condition) || !strings.Contains(conditions(now), "Initialized=True") {
			t.Errorf("%s: %s, %s; want Running, %s", step.name, now.Phase, conditions(now), step.condition)
		}
		s = &now
	}
	for _, c := range append(s.ContainerStatuses, s.InitContainerStatuses...) {
		if c.State.Waiting == nil || c.RestartCount != 1 || c.LastTerminationState.Terminated == nil || c.LastTerminationState.Terminated.Reason != "RestartingAllContainers" {
			t.Errorf("%+v", c)
		}
	}
	again := running("a")
	again.ID, again.Attempt = "a1", 1
	now := status.Of(p, in("x", again, running("b")), s, status.Node{}, now)
	if c := now.ContainerStatuses[0]; now.Phase != v1.PodRunning || c.RestartCount != 1 || c.State.Running == nil {
		t.Errorf("%s, %+v", now.Phase, c)
	}
}
