package server

import (
	"fmt"
	"math"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/userns"
	"github.com/crisp-cri/crisp/network"
	"github.com/crisp-cri/crisp/oci"
)

// networkPod describes a sandbox to package network, identically at ADD and DEL.
func networkPod(sb *oci.Sandbox, rec *sandboxRecord) network.Pod {
	m := rec.config.GetMetadata()
	// RunPodSandbox has refused annotations that cannot be parsed.
	ingress, _ := bandwidth(rec.config.Annotations, ingressAnnotation)
	egress, _ := bandwidth(rec.config.Annotations, egressAnnotation)
	devices, _ := oci.DeviceSysctls(podSysctls(rec.config.GetLinux()))
	p := network.Pod{
		ID: sb.ID(), Name: m.GetName(), Namespace: m.GetNamespace(), UID: m.GetUid(),
		NetNS:       sb.NetNS(),
		IngressBPS:  ingress,
		EgressBPS:   egress,
		Annotations: rec.config.Annotations,
		CgroupPath:  sb.CgroupPath(),
		Sysctls:     devices,
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

// The annotations that limit a pod's bandwidth. No API server validates them.
const (
	ingressAnnotation = "kubernetes.io/ingress-bandwidth"
	egressAnnotation  = "kubernetes.io/egress-bandwidth"
)

// Bounds of a limit in bits per second, as in the kubelet's former parser and in containerd: a
// value outside them has the wrong unit.
const minBandwidth, maxBandwidth = 1e3, 1e15

// bandwidth parses one of the annotations: bits per second, as a Kubernetes quantity such as
// "10M". 0 = no annotation and no limit; the error is fault.Invalid for anything but a quantity
// from 1k to 1P.
func bandwidth(annotations map[string]string, name string) (int64, error) {
	text, ok := annotations[name]
	if !ok {
		return 0, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, fault.Invalid.Errorf("annotation %s: %.100q is not a quantity such as 10M: %w", name, text, err)
	}
	if q.CmpInt64(minBandwidth) < 0 || q.CmpInt64(maxBandwidth) > 0 {
		return 0, fault.Invalid.Errorf("annotation %s: %.100q is not between 1k and 1P bits per second", name, text)
	}
	return q.Value(), nil
}

// checkBandwidth refuses a limit that cannot be parsed: a pod that runs without it would go
// unnoticed.
func checkBandwidth(config *cri.PodSandboxConfig) error {
	_, err := bandwidth(config.GetAnnotations(), ingressAnnotation)
	if err == nil {
		_, err = bandwidth(config.GetAnnotations(), egressAnnotation)
	}
	return err
}

// checkPorts refuses ports that plugins cannot read: DEL would fail as ADD does, for ever. It also
// refuses host ports that lead to two ports; two containers may have the same one.
func checkPorts(config *cri.PodSandboxConfig) error {
	leads := make(map[network.Port]int32) // from one address to container_port
	for i, pm := range config.GetPortMappings() {
		if pm.HostPort == 0 {
			continue // see networkPod
		}
		for name, port := range map[string]int32{"host_port": pm.HostPort, "container_port": pm.ContainerPort} {
			if port < 1 || port > math.MaxUint16 {
				return fault.Invalid.Errorf("port_mappings[%d]: %s %d is not a port", i, name, port)
			}
		}
		if _, ok := cri.Protocol_name[int32(pm.Protocol)]; !ok {
			return fault.Invalid.Errorf("port_mappings[%d]: protocol %d is not known", i, pm.Protocol)
		}
		on := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
		if pm.HostIp != "" {
			ip, err := netip.ParseAddr(pm.HostIp)
			if err != nil || ip.Zone() != "" {
				return fault.Invalid.Errorf("port_mappings[%d]: host_ip %.100q is not an IP address", i, pm.HostIp)
			}
			on = []netip.Addr{ip.Unmap()}
		}
		for _, ip := range on {
			from := network.Port{HostPort: pm.HostPort, Protocol: pm.Protocol.String(), HostIP: ip.String()}
			if to, ok := leads[from]; ok && to != pm.ContainerPort {
				return fault.Invalid.Errorf("port_mappings[%d]: host_port %d leads to container_port %d already", i, pm.HostPort, to)
			}
			leads[from] = pm.ContainerPort
		}
	}
	return nil
}

// networkStatus returns a sandbox's addresses in CRI's form.
func networkStatus(rec *sandboxRecord) *cri.PodSandboxNetworkStatus {
	st := new(cri.PodSandboxNetworkStatus)
	for i, ip := range rec.addresses() {
		if i == 0 {
			st.Ip = ip
			continue
		}
		st.AdditionalIps = append(st.AdditionalIps, &cri.PodIP{Ip: ip})
	}
	return st
}

// openSysctls are the defaults of a pod with its own network: any user may listen on any port
// and ping. The kernel's defaults protect a shared machine; a pod's network has one owner, and
// without these sysctls containers would be given CAP_NET_BIND_SERVICE or CAP_NET_RAW, which
// grant more.
var openSysctls = map[string]string{
	"net.ipv4.ip_unprivileged_port_start": "0",         // Linux 4.11
	"net.ipv4.ping_group_range":           allGroups(), // icmp(7)
}

// allGroups is the range of all groups that can ping: of 2³¹ at most, those that crispd has.
func allGroups() string {
	last := uint32(math.MaxInt32)
	if own := userns.Own(); own != nil {
		last = min(last, max(own.GID.Length, 1)-1)
	}
	return fmt.Sprint("0 ", last)
}

// podSysctls returns the sysctls of the request, and the open ones that this kernel has.
func podSysctls(config *cri.LinuxPodSandboxConfig) map[string]string {
	if config.GetSecurityContext().GetNamespaceOptions().GetNetwork() != cri.NamespaceMode_POD {
		return config.GetSysctls()
	}
	all := map[string]string{}
	for name, value := range openSysctls {
		if kernel.Sysctl(strings.ReplaceAll(name, ".", "/")) != "" {
			all[name] = value
		}
	}
	for name, value := range config.GetSysctls() {
		// sysctl(8) accepts both separators; our value must not override the request's.
		delete(all, strings.ReplaceAll(name, "/", "."))
		all[name] = value
	}
	return all
}
