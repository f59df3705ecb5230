package podspec

import (
	"cmp"
	"fmt"
	"maps"
	"strings"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/fieldpath"
	downward "k8s.io/kubectl/pkg/util/resource"
)

// Field returns a field of the pod for the downward API. It fails if the field is an address of
// the node, which has none yet.
func (in *Input) Field(fieldPath string) (string, error) {
	pod, ips := in.Pod, in.IPs
	if host := strings.HasPrefix(fieldPath, "status.hostIP"); host || pod.Spec.HostNetwork && strings.HasPrefix(fieldPath, "status.podIP") {
		if ips = in.Node.IPs; len(ips) == 0 {
			return "", fmt.Errorf("%s: the node has no address yet", fieldPath)
		}
	}
	switch fieldPath {
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.podIP":
		return cmp.Or(ips...), nil
	case "status.hostIPs", "status.podIPs":
		return strings.Join(ips, ","), nil
	}
	return fieldpath.ExtractFieldPathAsString(pod, fieldPath)
}

// Resource returns a container's request or limit in units of the divisor, rounded up. The
// default of a container without a limit is the limit of the pod as a whole, or else the node's
// allocatable amount.
func (in *Input) Resource(c *v1.Container, ref *v1.ResourceFieldSelector) (string, error) {
	if ref.ContainerName != "" {
		if c = podsync.ContainerOf(&in.Pod.Spec, ref.ContainerName); c == nil {
			return "", fmt.Errorf("pod has no container %s", ref.ContainerName)
		}
	}
	limited := *c
	limited.Resources.Limits = v1.ResourceList{}
	maps.Copy(limited.Resources.Limits, c.Resources.Limits)
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage} {
		if q := c.Resources.Limits[name]; !q.IsZero() {
			continue
		}
		limited.Resources.Limits[name] = in.Node.Allocatable[name]
		if all := in.Pod.Spec.Resources; all != nil {
			if q := all.Limits[name]; !q.IsZero() {
				limited.Resources.Limits[name] = q
			}
		}
	}
	return downward.ExtractContainerResourceValue(ref, &limited)
}
