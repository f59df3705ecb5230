package network

import (
	"math"
	"net/netip"
	"strings"
)

// cniArgs returns what the other runtimes pass in CNI_ARGS.
func cniArgs(p Pod) [][2]string {
	return [][2]string{
		{"IgnoreUnknown", "1"},
		{"K8S_POD_NAMESPACE", p.Namespace},
		{"K8S_POD_NAME", p.Name},
		{"K8S_POD_INFRA_CONTAINER_ID", p.ID},
		{"K8S_POD_UID", p.UID},
	}
}

// The capability arguments have the form defined in CNI's CONVENTIONS.md; libcni passes each
// plugin those that its configuration asks for.
type (
	bandwidth struct {
		IngressRate  uint64 `json:"ingressRate,omitempty"` // bits per second
		IngressBurst uint64 `json:"ingressBurst,omitempty"`
		EgressRate   uint64 `json:"egressRate,omitempty"`
		EgressBurst  uint64 `json:"egressBurst,omitempty"` // bits
	}
	ipRange struct {
		Subnet string `json:"subnet"`
	}
)

// capabilities returns the capability arguments for p.
func capabilities(p Pod, cidrs []netip.Prefix) map[string]any {
	caps := make(map[string]any)
	var ports []Port
	for _, port := range p.Ports {
		if port.HostPort > 0 {
			port.Protocol = strings.ToLower(port.Protocol)
			ports = append(ports, port)
		}
	}
	if ports != nil {
		caps["portMappings"] = ports
	}
	if p.IngressBPS > 0 || p.EgressBPS > 0 {
		b := bandwidth{}
		if p.IngressBPS > 0 {
			b.IngressRate, b.IngressBurst = uint64(p.IngressBPS), burst(p.IngressBPS)
		}
		if p.EgressBPS > 0 {
			b.EgressRate, b.EgressBurst = uint64(p.EgressBPS), burst(p.EgressBPS)
		}
		caps["bandwidth"] = b
	}
	if d := p.DNS; len(d.Servers)+len(d.Searches)+len(d.Options) > 0 {
		caps["dns"] = d
	}
	var ranges [][]ipRange // one set per family; the pod gets one address of each
	for _, cidr := range cidrs {
		ranges = append(ranges, []ipRange{{cidr.Masked().String()}})
	}
	if ranges != nil {
		caps["ipRanges"] = ranges
	}
	if len(p.Annotations) > 0 {
		caps["io.kubernetes.cri.pod-annotations"] = p.Annotations
	}
	if p.CgroupPath != "" {
		caps["cgroupPath"] = p.CgroupPath
	}
	return caps
}

// burst returns the size in bits of the token bucket for a rate in bits per second: an eighth of
// a second's traffic, but at least a few packets of the maximum size (64 KiB with segmentation
// offload). The other runtimes pass the bandwidth plugin's maximum of 4 GB, with which a limit
// of 10 Mbit/s has no effect for the first hour.
func burst(rate int64) uint64 {
	const least, most = 256 << 10 * 8, math.MaxUint32 * 7
	return min(max(uint64(rate)/8, least), most)
}
