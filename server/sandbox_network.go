package server

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/network"
	"github.com/crisp-cri/crisp/oci"
)

// networkPod is what network is told about a sandbox, the same at ADD and at DEL.
func networkPod(sb *oci.Sandbox, rec *sandboxRecord) network.Pod {
	m := rec.config.GetMetadata()
	p := network.Pod{
		ID: sb.ID(), Name: m.GetName(), Namespace: m.GetNamespace(), UID: m.GetUid(),
		NetNS:       sb.NetNS(),
		IngressBPS:  bandwidth(rec.config.Annotations["kubernetes.io/ingress-bandwidth"]),
		EgressBPS:   bandwidth(rec.config.Annotations["kubernetes.io/egress-bandwidth"]),
		Annotations: rec.config.Annotations,
		CgroupPath:  sb.CgroupParent(),
	}
	for _, pm := range rec.config.PortMappings {
		if pm.HostPort == 0 {
			continue // CRI: "it indicates NO host port should be allocated"
		}
		p.Ports = append(p.Ports, network.Port{
			Protocol:      strings.ToLower(pm.Protocol.String()),
			ContainerPort: pm.ContainerPort,
			HostPort:      pm.HostPort,
			HostIP:        pm.HostIp,
		})
	}
	if dns := rec.config.DnsConfig; dns != nil {
		p.DNS = network.DNS{Servers: dns.Servers, Searches: dns.Searches, Options: dns.Options}
	}
	return p
}

// bandwidth reads an annotation like "10M": bits per second, as a quantity of
// Kubernetes. What is none is no limit; the API server has checked it.
func bandwidth(text string) int64 {
	if text == "" {
		return 0
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() < 0 {
		return 0
	}
	return q.Value()
}

// networkStatus is a sandbox's addresses as CRI wants them.
func networkStatus(rec *sandboxRecord) *cri.PodSandboxNetworkStatus {
	st := new(cri.PodSandboxNetworkStatus)
	for i, ip := range rec.ips {
		if i == 0 {
			st.Ip = ip
			continue
		}
		st.AdditionalIps = append(st.AdditionalIps, &cri.PodIP{Ip: ip})
	}
	return st
}
