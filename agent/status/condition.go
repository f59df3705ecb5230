package status

import (
	"fmt"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	podCompleted             = "PodCompleted"
	podFailed                = "PodFailed"
	containersNotReady       = "ContainersNotReady"
	containersNotInitialized = "ContainersNotInitialized"
)

// conditions returns the pod's conditions in the kubelet's order. A condition whose status
// has not changed keeps its time of transition.
func (g *generator) conditions(s v1.PodStatus) []v1.PodCondition {
	list := g.resizeConditions()
	if c := g.disruption(); c != nil {
		list = append(list, *c)
	}
	list = append(list,
		condition(v1.PodReadyToStartContainers, podsync.SandboxChanged(g.pod, g.own()) == "", "", ""),
		g.initialized(s),
		g.ready(v1.PodReady, s),
		g.ready(v1.ContainersReady, s),
		condition(v1.PodScheduled, true, "", ""),
	)
	if podsync.MayRestartAll(&g.pod.Spec) {
		list = append(list, g.allRestarting(s.Phase))
	}
	if g.have.Update != nil {
		list = append(list, *g.have.Update)
	}
	for i := range list {
		c := &list[i]
		c.ObservedGeneration = g.pod.Generation
		if c.LastTransitionTime.IsZero() {
			c.LastTransitionTime = metav1.Time{Time: g.now}
		}
		for _, old := range g.old.Conditions {
			if old.Type == c.Type && old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
		}
	}
	return list
}

func (g *generator) allRestarting(phase v1.PodPhase) v1.PodCondition {
	switch {
	case phase == v1.PodSucceeded:
		return condition(v1.AllContainersRestarting, false, podCompleted, "")
	case phase == v1.PodFailed:
		return condition(v1.AllContainersRestarting, false, podFailed, "")
	case podsync.RestartsAll(g.pod, g.have):
		return condition(v1.AllContainersRestarting, true, "RestartAllContainersStarted", "container exited with restart policy rule")
	}
	return condition(v1.AllContainersRestarting, false, "", "")
}

func isTrue(list []v1.PodCondition, kind v1.PodConditionType) bool {
	return slices.ContainsFunc(list, func(c v1.PodCondition) bool { return c.Type == kind && c.Status == v1.ConditionTrue })
}

func condition(kind v1.PodConditionType, met bool, reason, message string) v1.PodCondition {
	c := v1.PodCondition{Type: kind, Status: v1.ConditionFalse, Reason: reason, Message: message}
	if met {
		c.Status = v1.ConditionTrue
	}
	return c
}

// own returns this pod's sandboxes, without those of other pods with its name.
func (g *generator) own() podsync.Have {
	return podsync.Have{Sandboxes: slices.DeleteFunc(slices.Clone(g.have.Sandboxes), func(sb podsync.Sandbox) bool { return !g.mine(sb.UID) })}
}

func (g *generator) disruption() *v1.PodCondition {
	if v := g.have.Verdict; v != nil && v.Condition != nil {
		return v.Condition.DeepCopy()
	}
	i := slices.IndexFunc(g.old.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.DisruptionTarget })
	if i < 0 {
		return nil
	}
	return g.old.Conditions[i].DeepCopy()
}

func (g *generator) initialized(s v1.PodStatus) v1.PodCondition {
	var missing []string
	for i := range g.pod.Spec.InitContainers {
		done := s.InitContainerStatuses[i].Ready
		if podsync.IsSidecar(&g.pod.Spec.InitContainers[i]) {
			done = *s.InitContainerStatuses[i].Started
		}
		if !done {
			missing = append(missing, g.pod.Spec.InitContainers[i].Name)
		}
	}
	started := slices.ContainsFunc(s.ContainerStatuses, func(c v1.ContainerStatus) bool {
		return c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil
	})
	switch {
	case s.Phase == v1.PodSucceeded:
		return condition(v1.PodInitialized, true, podCompleted, "")
	case started, len(missing) == 0:
		return condition(v1.PodInitialized, true, "", "")
	}
	return condition(v1.PodInitialized, false, containersNotInitialized, names("incomplete", missing))
}

// ready returns the condition Ready or ContainersReady, which are the same without
// readiness gates.
func (g *generator) ready(kind v1.PodConditionType, s v1.PodStatus) v1.PodCondition {
	switch s.Phase {
	case v1.PodSucceeded:
		return condition(kind, false, podCompleted, "")
	case v1.PodFailed:
		return condition(kind, false, podFailed, "")
	}
	var missing []string
	for i := range g.pod.Spec.InitContainers {
		if podsync.IsSidecar(&g.pod.Spec.InitContainers[i]) && !s.InitContainerStatuses[i].Ready {
			missing = append(missing, s.InitContainerStatuses[i].Name)
		}
	}
	for i := range s.ContainerStatuses {
		if !s.ContainerStatuses[i].Ready {
			missing = append(missing, s.ContainerStatuses[i].Name)
		}
	}
	if len(missing) > 0 {
		return condition(kind, false, containersNotReady, names("unready", missing))
	}
	return condition(kind, true, "", "")
}

func names(what string, list []string) string {
	return fmt.Sprintf("containers with %s status: [%s]", what, strings.Join(list, " "))
}

// resizeConditions returns the condition PodResizePending or PodResizeInProgress if containers, or
// their sandbox, do not have the resources of the spec, else nil.
func (g *generator) resizeConditions() []v1.PodCondition {
	if p := g.have.Pending; p != nil {
		return []v1.PodCondition{condition(v1.PodResizePending, true, p.Reason, p.Message)}
	}
	for spec := range podsync.Containers(&g.pod.Spec) {
		actual, known := g.have.Actual[spec.Name]
		c, there := g.have.Newest(string(g.pod.UID), spec.Name)
		differs := known && !podsync.SameResources(spec.Resources, actual)
		if there && c.State == podsync.Running && (differs || g.have.Resizing) {
			if f, ok := g.have.Failures[podsync.ResizeSubject]; ok {
				return []v1.PodCondition{condition(v1.PodResizeInProgress, true, v1.PodReasonError, f.Message)}
			}
			return []v1.PodCondition{condition(v1.PodResizeInProgress, true, "", "")}
		}
	}
	return nil
}
