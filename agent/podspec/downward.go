package podspec

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Field returns a field of the pod for the downward API.
func (in *Input) Field(fieldPath string) (string, error) {
	pod, ips := in.Pod, in.IPs
	if m, key, ok := manifest.SplitSubscript(fieldPath); ok {
		if m == "metadata.labels" {
			return pod.Labels[key], nil
		}
		return pod.Annotations[key], nil
	}
	if host := strings.HasPrefix(fieldPath, "status.hostIP"); host || pod.Spec.HostNetwork && strings.HasPrefix(fieldPath, "status.podIP") {
		if ips = in.Node.IPs; len(ips) == 0 {
			return "", fmt.Errorf("%s: the node has no address yet", fieldPath)
		}
	}
	switch fieldPath {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return quoted(pod.Labels), nil
	case "metadata.annotations":
		return quoted(pod.Annotations), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.podIP":
		return cmp.Or(ips...), nil
	case "status.hostIPs", "status.podIPs":
		return strings.Join(ips, ","), nil
	}
	return "", fmt.Errorf("there is no field %s", fieldPath)
}

// Resource returns a container's request or limit in units of the divisor, rounded up. The
// limit of a container that has none is what all pods can have.
func (in *Input) Resource(c *v1.Container, ref *v1.ResourceFieldSelector) (string, error) {
	if ref.ContainerName != "" {
		if c = podsync.ContainerOf(&in.Pod.Spec, ref.ContainerName); c == nil {
			return "", fmt.Errorf("pod has no container %s", ref.ContainerName)
		}
	}
	list, name, ok := strings.Cut(ref.Resource, ".")
	resources := map[string]v1.ResourceList{"limits": c.Resources.Limits, "requests": c.Resources.Requests}[list]
	if !ok || list != "limits" && list != "requests" {
		return "", fmt.Errorf("there is no resource %s", ref.Resource)
	}
	value := resources[v1.ResourceName(name)]
	if value.IsZero() && list == "limits" {
		value = in.Node.allocatable(v1.ResourceName(name))
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	up := func(n, by int64) string { return strconv.FormatInt((n+by-1)/by, 10) }
	if name == string(v1.ResourceCPU) {
		return up(value.MilliValue(), divisor.MilliValue()), nil
	}
	return up(value.Value(), max(divisor.Value(), 1)), nil
}

// allocatable returns how much of a resource a pod can use without a limit. Without
// a request there are no huge pages.
func (n *Node) allocatable(name v1.ResourceName) resource.Quantity {
	switch name {
	case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage:
		return n.Allocatable[name]
	}
	return resource.Quantity{}
}

// quoted writes a map as key="value" lines, sorted by key.
func quoted(m map[string]string) string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, key+"="+strconv.Quote(m[key]))
	}
	return strings.Join(lines, "\n")
}
