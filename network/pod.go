package network

import "net/netip"

// A Pod is a sandbox as plugins see it.
type Pod struct {
	ID, Name, Namespace, UID string // ID is the sandbox's

	NetNS string // path of the pinned namespace; for Detach it need not exist

	Ports                 []Port
	IngressBPS, EgressBPS int64 // bits per second, 0 means no limit
	Annotations           map[string]string
	CgroupPath            string // of the pod, below the cgroup mount, for plugins with the capability cgroupPath; may be ""
	DNS                   DNS

	// Sysctls are parameters of the pod's devices, by their paths below /proc/sys. Attach sets
	// them when the plugins have created the devices.
	Sysctls map[string]string
}

// A Port is one port of the host that is forwarded to the pod. Ports with HostPort 0 are
// ignored, as CRI says of PortMapping. The others are passed to the plugins as the capability
// portMappings.
type Port struct {
	HostPort      int32  `json:"hostPort"`
	ContainerPort int32  `json:"containerPort"`
	Protocol      string `json:"protocol"`         // tcp, udp or sctp
	HostIP        string `json:"hostIP,omitempty"` // "" means all addresses
}

// DNS is passed to the plugins as the capability dns.
type DNS struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// A Result is the outcome of ADD for a pod.
type Result struct {
	IPs []netip.Addr // of ifName, in the order of the plugins' result: the first is the primary one
}
