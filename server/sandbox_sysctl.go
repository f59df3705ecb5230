package server

import (
	"os"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// openSysctls are the defaults of a pod with its own network: any user may listen on any port
// and ping. The kernel's defaults protect a shared machine; a pod's network has one owner, and
// without these sysctls containers would be given CAP_NET_BIND_SERVICE or CAP_NET_RAW, which
// grant more.
var openSysctls = map[string]string{
	"net.ipv4.ip_unprivileged_port_start": "0",            // Linux 4.11
	"net.ipv4.ping_group_range":           "0 2147483647", // icmp(7); 2³¹-1 is the maximum
}

// podSysctls returns the sysctls of the request, and the open ones that this kernel has.
func podSysctls(config *cri.LinuxPodSandboxConfig) map[string]string {
	if config.GetSecurityContext().GetNamespaceOptions().GetNetwork() != cri.NamespaceMode_POD {
		return config.GetSysctls()
	}
	all := map[string]string{}
	for name, value := range openSysctls {
		if _, err := os.Stat("/proc/sys/net/ipv4/" + name[len("net.ipv4."):]); err == nil {
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
