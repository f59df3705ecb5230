package crix

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sandboxConfig translates the pod. Its containers are created with the same
// config, so it depends on nothing but the pod, the attempt and the node.
func (d *Driver) sandboxConfig(pod *v1.Pod, attempt uint32) (*cri.PodSandboxConfig, error) {
	dns, err := d.dnsConfig(pod)
	if err != nil {
		return nil, err
	}
	security := &cri.LinuxSandboxSecurityContext{
		NamespaceOptions:   namespaces(pod),
		RunAsUser:          int64Value(pod.Spec.SecurityContext.RunAsUser),
		RunAsGroup:         int64Value(pod.Spec.SecurityContext.RunAsGroup),
		SupplementalGroups: pod.Spec.SecurityContext.SupplementalGroups,
		Privileged:         slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), privileged),
		Seccomp:            &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
	}
	sysctls := map[string]string{}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		sysctls[strings.ReplaceAll(s.Name, "/", ".")] = s.Value
	}
	return &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		Hostname:     hostname(pod),
		LogDirectory: d.podLogDir(pod.Namespace, pod.Name, string(pod.UID)),
		DnsConfig:    dns,
		PortMappings: portMappings(pod),
		Labels:       d.sandboxLabels(pod),
		Annotations:  d.sandboxAnnotations(pod),
		Linux: &cri.LinuxPodSandboxConfig{
			SecurityContext: security,
			Sysctls:         sysctls,
			Resources:       d.podResources(pod),
		},
	}, nil
}

// hostname is empty on the host's network, where the host's own name stays. CRI
// limits it to the 63 bytes that gethostname(2) promises.
func hostname(pod *v1.Pod) string {
	if pod.Spec.HostNetwork {
		return ""
	}
	name := pod.Spec.Hostname
	if name == "" {
		name = pod.Name
	}
	return strings.TrimRight(name[:min(len(name), 63)], "-.")
}

func namespaces(pod *v1.Pod) *cri.NamespaceOption {
	o := &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}
	switch {
	case pod.Spec.HostPID:
		o.Pid = cri.NamespaceMode_NODE
	case pod.Spec.ShareProcessNamespace != nil && *pod.Spec.ShareProcessNamespace:
		o.Pid = cri.NamespaceMode_POD
	}
	if pod.Spec.HostNetwork {
		o.Network = cri.NamespaceMode_NODE
	}
	if pod.Spec.HostIPC {
		o.Ipc = cri.NamespaceMode_NODE
	}
	return o
}

// portMappings are those with a host port; a pod on the host's network has none,
// its ports are the host's already.
func portMappings(pod *v1.Pod) []*cri.PortMapping {
	if pod.Spec.HostNetwork {
		return nil
	}
	var mappings []*cri.PortMapping
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.HostPort == 0 {
				continue
			}
			mappings = append(mappings, &cri.PortMapping{
				Protocol:      cri.Protocol(cri.Protocol_value[string(p.Protocol)]),
				ContainerPort: p.ContainerPort,
				HostPort:      p.HostPort,
				HostIp:        p.HostIP,
			})
		}
	}
	return mappings
}
