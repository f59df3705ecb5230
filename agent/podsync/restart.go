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

// rule returns the first restart rule of the container that matches an exit code, or nil.
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

// policyOf returns the restart policy of a container: its own, or else the pod's.
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
