package podsync

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/dump"
)

// rule returns the first of the container's own rules that fits an exit code, or nil.
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

// Restarts reports whether a container of the pod is to run again after it has
// exited with code: the first of its own rules that fits decides, then its own
// policy, then the pod's.
func Restarts(spec *v1.PodSpec, c *v1.Container, code int32) bool {
	policy := v1.ContainerRestartPolicy(spec.RestartPolicy)
	if c.RestartPolicy != nil {
		policy = *c.RestartPolicy
	}
	if rule(c, code) != nil { // with all others, or alone
		return true
	}
	switch policy {
	case v1.ContainerRestartPolicyNever:
		return false
	case v1.ContainerRestartPolicyOnFailure:
		return code != 0
	}
	return true
}

// restartsAtAll reports whether a container that we kill is to be started again.
// Its rules speak of exit codes, so they do not count here.
func restartsAtAll(spec *v1.PodSpec, c *v1.Container) bool {
	if c.RestartPolicy != nil {
		return *c.RestartPolicy != v1.ContainerRestartPolicyNever
	}
	return spec.RestartPolicy != v1.RestartPolicyNever
}

// Hash tells whether a container must be replaced because its definition has
// changed: what may change in a running pod is its image. It is the kubelet's
// hash, so that either takes over the other's containers.
func Hash(c *v1.Container) string {
	h := fnv.New32a()
	text, err := json.Marshal(map[string]string{"image": c.Image, "name": c.Name})
	if err != nil {
		return ""
	}
	fmt.Fprintf(h, "%v", dump.ForHash(text)) // the kubelet hashes a dump of the JSON's bytes
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}
