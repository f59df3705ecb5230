package podspec

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

// Sandbox translates the pod's sandbox. CreateContainer gets the same config, so it must depend
// only on the pod, the attempt and the node. warnings describe what its DNS configuration leaves
// out.
func (in *Input) Sandbox(attempt uint32) (config *cri.PodSandboxConfig, warnings []string, err error) {
	pod := in.Pod
	dns, warnings := in.dnsConfig()
	host, err := in.kernelHostname()
	if err != nil {
		return nil, nil, err
	}
	_, above := contexts(pod, &v1.Container{})
	security := &cri.LinuxSandboxSecurityContext{
		NamespaceOptions: in.namespaces(),
		RunAsUser:        int64Value(above.RunAsUser),
		RunAsGroup:       int64Value(above.RunAsGroup),
		SelinuxOptions:   selinux(above.SELinuxOptions),
		Privileged:       anyPrivileged(pod),
		Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
	}
	if security.SupplementalGroups, security.SupplementalGroupsPolicy, err = groups(above); err != nil {
		return nil, nil, err
	}
	sysctls := map[string]string{}
	for _, s := range above.Sysctls {
		sysctls[strings.ReplaceAll(s.Name, "/", ".")] = s.Value
	}
	linux := &cri.LinuxPodSandboxConfig{CgroupParent: in.CgroupParent, SecurityContext: security, Sysctls: sysctls}
	linux.Resources, linux.Overhead = in.PodResources()
	return &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		Hostname:     host,
		LogDirectory: in.LogDir,
		DnsConfig:    dns,
		PortMappings: portMappings(pod),
		Labels:       in.sandboxLabels(),
		Annotations:  in.sandboxAnnotations(),
		Linux:        linux,
	}, warnings, nil
}

// hostname returns the host name of a pod, cut to 63 bytes as by the kubelet, and its domain
// (SUBDOMAIN.NAMESPACE.svc.CLUSTERDOMAIN); "" without a subdomain.
func (in *Input) hostname() (host, domain string) {
	pod := in.Pod
	if pod.Spec.HostnameOverride != nil {
		return truncateHostname(*pod.Spec.HostnameOverride), ""
	}
	if pod.Spec.Subdomain != "" {
		domain = fmt.Sprintf("%s.%s.svc.%s", pod.Spec.Subdomain, pod.Namespace, in.Node.ClusterDomain)
	}
	return truncateHostname(cmp.Or(pod.Spec.Hostname, pod.Name)), domain
}

func truncateHostname(name string) string {
	if len(name) <= 63 {
		return name
	}
	return strings.TrimRight(name[:63], "-.")
}

// kernelHostname returns the host name to set in the kernel: the short one, or with
// setHostnameAsFQDN the full one. It is "" with the host's network, where the host keeps its
// name.
func (in *Input) kernelHostname() (string, error) {
	pod := in.Pod
	if pod.Spec.HostNetwork {
		return "", nil
	}
	host, domain := in.hostname()
	if !ptr.Deref(pod.Spec.SetHostnameAsFQDN, false) || domain == "" {
		return host, nil
	}
	host += "." + domain
	if len(host) > 64 { // sethostname(2): HOST_NAME_MAX
		return "", fmt.Errorf("pod %s: host name %s is longer than 64 bytes", podsync.KeyOf(pod), host)
	}
	return host, nil
}

func (in *Input) namespaces() *cri.NamespaceOption {
	pod := in.Pod
	o := &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER, UsernsOptions: in.UserNamespace}
	switch {
	case pod.Spec.HostPID:
		o.Pid = cri.NamespaceMode_NODE
	case ptr.Deref(pod.Spec.ShareProcessNamespace, false):
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

// portMappings returns all ports of the sidecars and containers, even those without a host port:
// a network plugin may use them. The kubelet leaves out those of sidecars, so that their host
// ports do not work.
func portMappings(pod *v1.Pod) []*cri.PortMapping {
	var mappings []*cri.PortMapping
	for c := range podsync.Lasting(&pod.Spec) {
		seen := map[string]bool{}
		for _, p := range c.Ports {
			name := cmp.Or(p.Name, fmt.Sprintf("%s %s:%d:%d", p.Protocol, p.HostIP, p.ContainerPort, p.HostPort))
			if seen[name] {
				continue
			}
			seen[name] = true
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
