package podsync

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/dump"
	"k8s.io/utils/ptr"
)

func rule(c *v1.Container, code int32) *v1.ContainerRestartRule {
	if c.RestartPolicy == nil {
		return nil
	}
	for i := range c.RestartPolicyRules {
		r := &c.RestartPolicyRules[i]
		if r.ExitCodes == nil {
			continue
		}
		in := slices.Contains(r.ExitCodes.Values, code)
		if in == (r.ExitCodes.Operator == v1.ContainerRestartRuleOnExitCodesOpIn) {
			return r
		}
	}
	return nil
}

// Restarts reports whether a container must run again after it has exited with code. The first
// matching rule decides, then the container's policy, then the pod's.
func Restarts(spec *v1.PodSpec, c *v1.Container, code int32) bool {
	if rule(c, code) != nil { // the actions of rules are Restart and RestartAllContainers
		return true
	}
	switch policyOf(spec, c) {
	case v1.ContainerRestartPolicyNever:
		return false
	case v1.ContainerRestartPolicyOnFailure:
		return code != 0
	}
	return true
}

// InitFailed reports whether an init container that ended with code and reason has failed. An
// OOM kill in it is a failure, whatever its exit code.
func InitFailed(code int32, reason string) bool { return code != 0 || reason == "OOMKilled" }

// RestartsInit reports whether an init container that is not a sidecar must run again after it
// ended with code and reason. It does not run again once it has succeeded.
func RestartsInit(spec *v1.PodSpec, c *v1.Container, code int32, reason string) bool {
	return InitFailed(code, reason) && (Restarts(spec, c, code) || restartsAtAll(spec, c))
}

// restartsAtAll reports whether a container that the agent kills must start again. Restart rules
// do not count, because they are about exit codes.
func restartsAtAll(spec *v1.PodSpec, c *v1.Container) bool {
	return policyOf(spec, c) != v1.ContainerRestartPolicyNever
}

func policyOf(spec *v1.PodSpec, c *v1.Container) v1.ContainerRestartPolicy {
	return ptr.Deref(c.RestartPolicy, v1.ContainerRestartPolicy(spec.RestartPolicy))
}

// Hash returns a hash of a container's name and image, in hex. The image is the one field that
// may change while the container runs and needs a new one. The value is that of the kubelet,
// whose annotation (io.kubernetes.container.hash) keeps it.
func Hash(c *v1.Container) string {
	h := fnv.New32a()
	text, err := json.Marshal(map[string]string{"image": c.Image, "name": c.Name})
	if err != nil {
		return ""
	}
	fmt.Fprintf(h, "%v", dump.ForHash(text)) // the kubelet hashes a dump of the JSON's bytes
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}

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
