package podspec

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Hosts returns the pod's /etc/hosts in the kubelet's form; "" while the pod has no
// address. node is the node's /etc/hosts, for pods on its network.
func (in *Input) Hosts(node []byte) string {
	switch {
	case in.Pod.Spec.HostNetwork:
		return "# Kubernetes-managed hosts file (host network).\n" + string(node) + aliases(in.Pod)
	case len(in.IPs) == 0:
		return ""
	}
	host, domain := in.hostname()
	return podHosts(host, domain, in.IPs) + aliases(in.Pod)
}

func podHosts(host, domain string, ips []string) string {
	var b strings.Builder
	b.WriteString("# Kubernetes-managed hosts file.\n")
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	b.WriteString("fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
	for _, ip := range ips {
		if domain != "" {
			fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", ip, host, domain, host)
		} else {
			fmt.Fprintf(&b, "%s\t%s\n", ip, host)
		}
	}
	return b.String()
}

func aliases(pod *v1.Pod) string {
	if len(pod.Spec.HostAliases) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n# Entries added by HostAliases.\n")
	for _, a := range pod.Spec.HostAliases {
		fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
	}
	return b.String()
}
