package status

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// phase sums the containers up, as Kubernetes does.
func (g *generator) phase(s v1.PodStatus) v1.PodPhase {
	never := g.pod.Spec.RestartPolicy == v1.RestartPolicyNever
	for _, c := range s.InitContainerStatuses {
		switch t := ended(c); {
		case t == nil:
			if !g.begun(s) {
				return v1.PodPending
			}
		case t.ExitCode != 0 && never && c.State.Terminated != nil:
			return v1.PodFailed
		case t.ExitCode != 0 && !g.begun(s):
			return v1.PodPending
		}
	}
	var waiting, running, failed, done int
	for _, c := range s.ContainerStatuses {
		switch {
		case c.State.Running != nil:
			running++
		case c.State.Terminated != nil && c.State.Terminated.ExitCode == 0:
			done++
		case c.State.Terminated != nil:
			failed++
		case c.LastTerminationState.Terminated != nil: // waits for its back-off
			running++
		default:
			waiting++
		}
	}
	switch {
	case waiting > 0:
		return v1.PodPending
	case running > 0, g.pod.Spec.RestartPolicy == v1.RestartPolicyAlways:
		return v1.PodRunning
	case failed > 0 && g.pod.Spec.RestartPolicy == v1.RestartPolicyOnFailure:
		return v1.PodRunning // it is about to start again
	case failed > 0:
		return v1.PodFailed
	case done > 0:
		return v1.PodSucceeded
	}
	return v1.PodPending
}

// ended is how a container last ended, if it is not running now.
func ended(c v1.ContainerStatus) *v1.ContainerStateTerminated {
	if c.State.Terminated != nil {
		return c.State.Terminated
	}
	return c.LastTerminationState.Terminated
}

// begun reports whether initialising is over: a container has been created.
func (g *generator) begun(s v1.PodStatus) bool {
	return slices.ContainsFunc(s.ContainerStatuses, func(c v1.ContainerStatus) bool { return c.ContainerID != "" })
}

func (g *generator) conditions(s v1.PodStatus) []v1.PodCondition {
	sb, ok := g.sandbox()
	initialized := g.begun(s) || !slices.ContainsFunc(s.InitContainerStatuses, func(c v1.ContainerStatus) bool { return !c.Ready })
	ready := s.Phase == v1.PodRunning && !slices.ContainsFunc(s.ContainerStatuses, func(c v1.ContainerStatus) bool { return !c.Ready })
	reason := ""
	if s.Phase == v1.PodSucceeded {
		reason = "PodCompleted"
	} else if !ready {
		reason = "ContainersNotReady"
	}
	condition := func(kind v1.PodConditionType, met bool, reason string) v1.PodCondition {
		c := v1.PodCondition{Type: kind, Status: v1.ConditionFalse, Reason: reason}
		if met {
			c.Status, c.Reason = v1.ConditionTrue, ""
		}
		return c
	}
	return []v1.PodCondition{
		condition(v1.PodReadyToStartContainers, ok && sb.Ready, ""),
		condition(v1.PodInitialized, initialized, "ContainersNotInitialized"),
		condition(v1.PodReady, ready, reason),
		condition(v1.ContainersReady, ready, reason),
		condition(v1.PodScheduled, true, ""),
	}
}
