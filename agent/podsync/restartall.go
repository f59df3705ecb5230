package podsync

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// RestartsAll reports whether all containers of a pod, including init containers, must start
// again, because a restart rule of an exited one says so. That one is removed last, so that the
// next agent continues if this one is killed meanwhile.
func RestartsAll(pod *v1.Pod, have Have) bool {
	for spec := range Containers(&pod.Spec) {
		if c, ok := have.Newest(string(pod.UID), spec.Name); ok && causesAll(spec, c) {
			return true
		}
	}
	return false
}

func causesAll(spec *v1.Container, c Container) bool {
	if c.State != Exited {
		return false
	}
	r := rule(spec, c.ExitCode)
	return r != nil && r.Action == v1.ContainerRestartRuleActionRestartAllContainers
}

// MayRestartAll reports whether a container of the pod has a rule with the action
// RestartAllContainers.
func MayRestartAll(spec *v1.PodSpec) bool {
	asks := func(r v1.ContainerRestartRule) bool {
		return r.Action == v1.ContainerRestartRuleActionRestartAllContainers
	}
	for c := range Containers(spec) {
		if slices.ContainsFunc(c.RestartPolicyRules, asks) {
			return true
		}
	}
	return false
}

// restartAll plans the next step of a restart of all containers in the same sandbox, and reports
// whether there is one: kill what runs, without a grace period as in the kubelet; remove the
// dead containers except those whose rule caused the restart; remove these. Ephemeral containers
// are left alone.
func (p *planner) restartAll() bool {
	if !RestartsAll(p.want, p.have) {
		return false
	}
	const why = "RestartAllContainers"
	var live, dead, causes []Action
	for _, c := range p.have.Containers {
		spec := containerOf(&p.want.Spec, c.Name)
		if c.UID != string(p.want.UID) || spec == nil {
			continue
		}
		remove := Action{Verb: RemoveContainer, ID: c.ID, UID: c.UID, Name: c.Name, Logs: keptRuns, Why: why}
		switch {
		case alive(c):
			live = append(live, Action{Verb: StopContainer, ID: c.ID, UID: c.UID, Name: c.Name, Restart: true, Why: why})
		case causesAll(spec, c):
			causes = append(causes, remove)
		default:
			dead = append(dead, remove)
		}
	}
	for _, actions := range [][]Action{live, dead, causes} {
		if len(actions) > 0 {
			for _, a := range actions {
				p.add(a)
			}
			return true
		}
	}
	return false
}
