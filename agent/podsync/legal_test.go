package podsync_test

import (
	"slices"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
)

// checkStatus checks that a status is valid in Kubernetes and may follow the previous one.
func (w *world) checkStatus(old, s *v1.PodStatus) {
	if old != nil && podsync.Terminal(old) && (s.Phase != old.Phase || s.Reason != old.Reason) {
		w.breaks("the phase goes from %s %s to %s %s", old.Phase, old.Reason, s.Phase, s.Reason)
	}
	all := slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses)
	for i := range all {
		c := &all[i]
		w.checkContainer(c)
		if old == nil {
			continue
		}
		if was := podsync.StatusOf(c.Name, old.InitContainerStatuses, old.ContainerStatuses, old.EphemeralContainerStatuses); was != nil && was.RestartCount > c.RestartCount {
			w.breaks("the restart count of %s falls from %d to %d", c.Name, was.RestartCount, c.RestartCount)
		}
	}
	w.checkConditions(s)
	switch s.Phase {
	case v1.PodSucceeded:
		for _, c := range s.ContainerStatuses {
			if c.State.Terminated == nil || c.State.Terminated.ExitCode != 0 {
				w.breaks("Succeeded, but %s has not", c.Name)
			}
		}
	case v1.PodFailed:
		if s.Reason == "" && !slices.ContainsFunc(all, func(c v1.ContainerStatus) bool {
			end := c.State.Terminated
			if end == nil {
				end = c.LastTerminationState.Terminated
			}
			return end != nil && (end.ExitCode != 0 || end.Reason == "OOMKilled")
		}) {
			w.breaks("Failed without a container that has failed")
		}
	case v1.PodPending, v1.PodRunning:
	default:
		w.breaks("phase %q", s.Phase)
	}
}

func (w *world) checkContainer(c *v1.ContainerStatus) {
	states := 0
	for _, is := range []bool{c.State.Running != nil, c.State.Waiting != nil, c.State.Terminated != nil} {
		if is {
			states++
		}
	}
	if states != 1 {
		w.breaks("%s has %d states", c.Name, states)
	}
	if isEphemeral(w.pod, c.Name) {
		return
	}
	if c.Started == nil || *c.Started && c.State.Running == nil {
		w.breaks("%s has started and does not run", c.Name)
	}
	lasting := !isInit(w.pod, c.Name) || isSidecar(w.pod, c.Name)
	if lasting && c.Ready && !*c.Started {
		w.breaks("%s is ready and has not started", c.Name)
	}
	if end := c.State.Terminated; !lasting && c.Ready != (end != nil && end.ExitCode == 0 && end.Reason != "OOMKilled") {
		w.breaks("init container %s: ready is %t", c.Name, c.Ready)
	}
	if c.LastTerminationState.Running != nil || c.LastTerminationState.Waiting != nil {
		w.breaks("%s: lastState is not an end: %+v", c.Name, c.LastTerminationState)
	}
}

func (w *world) checkConditions(s *v1.PodStatus) {
	is := map[v1.PodConditionType]v1.PodCondition{}
	for _, c := range s.Conditions {
		if _, twice := is[c.Type]; twice || c.LastTransitionTime.IsZero() {
			w.breaks("condition %s is there twice or has no time", c.Type)
		}
		is[c.Type] = c
	}
	ready := is[v1.PodReady].Status == v1.ConditionTrue
	if is[v1.ContainersReady].Status != is[v1.PodReady].Status {
		w.breaks("Ready and ContainersReady differ")
	}
	if !ready {
		return
	}
	if s.Phase != v1.PodRunning {
		w.breaks("Ready, but %s", s.Phase)
	}
	if is[v1.PodInitialized].Status != v1.ConditionTrue {
		w.breaks("Ready, but not Initialized")
	}
	for _, c := range s.ContainerStatuses {
		if !c.Ready {
			w.breaks("Ready, but %s is not", c.Name)
		}
	}
}
