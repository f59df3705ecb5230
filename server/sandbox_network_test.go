package server

import (
	"fmt"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A bandwidth limit that cannot be parsed is rejected with its annotation's name, and the corrected
// pod runs. On the node's network it limits nothing.
func TestUnreadableBandwidthIsRefused(t *testing.T) {
	n := newNode(t)
	for _, name := range []string{"kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth"} {
		for _, text := range []string{"500Mbps", "ten", "", "0", "-1", "-10M", "1", "999", "1001T", "2P", "1e30", "1e400"} {
			config := pod("web")
			config.Annotations[name] = text
			_, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: config})
			wantCode(t, name+"="+text, err, "InvalidArgument")
			if err != nil && !strings.Contains(err.Error(), name) {
				t.Errorf("%q: the error does not name %s: %v", text, name, err)
			}
		}
	}
	n.wantNothingLeft(t)
	config := pod("host")
	config.Annotations["kubernetes.io/egress-bandwidth"] = "500Mbps"
	config.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_NODE
	config.PortMappings = nil
	n.run(t, config)
	for text, want := range map[string]int64{"1k": 1e3, "1P": 1e15, "1M": 1e6, "1Ki": 1024, "1500": 1500} {
		config := pod("limited-" + strings.ToLower(text))
		config.Annotations["kubernetes.io/ingress-bandwidth"] = text
		if p := n.net.pod(n.run(t, config)); p.IngressBPS != want || p.EgressBPS != 10e6 {
			t.Errorf("%s: the network was given %d, %d", text, p.IngressBPS, p.EgressBPS)
		}
	}
}

// Ports that are none are refused before any plugin sees them: those that cannot read them in ADD
// cannot in DEL either, and nothing could remove the pod.
func TestPortsThatAreNoneAreRefused(t *testing.T) {
	n := newNode(t)
	for _, pm := range []*cri.PortMapping{
		{HostPort: 65536, ContainerPort: 80}, {HostPort: -1, ContainerPort: 80}, {HostPort: 8080, ContainerPort: 99999},
		{HostPort: 8080}, {HostPort: 8080, ContainerPort: -80}, {HostPort: 8080, ContainerPort: 80, Protocol: 9},
		{HostPort: 8080, ContainerPort: 80, HostIp: "localhost"}, {HostPort: 8080, ContainerPort: 80, HostIp: "127.0.0.1/8"},
		{HostPort: 8080, ContainerPort: 80, HostIp: "fe80::1%eth0"},
	} {
		config := pod("web")
		config.PortMappings = []*cri.PortMapping{pm}
		_, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: config})
		wantCode(t, pm.String(), err, "InvalidArgument")
		if err == nil || !strings.Contains(err.Error(), "port_mappings") {
			t.Errorf("%v: the error does not name the field: %v", pm, err)
		}
	}
	n.wantNothingLeft(t)
	config := pod("web")
	config.PortMappings = []*cri.PortMapping{{ContainerPort: 80}, {HostPort: 80, ContainerPort: 80, HostIp: "::"}, {HostPort: 65535, ContainerPort: 65535, Protocol: cri.Protocol_SCTP}}
	n.run(t, config)
}

// A host port that would lead to two ports of a pod is the client's fault, and not a port that
// another pod may give up: that would be Unavailable, and the kubelet would try for ever.
func TestHostPortThatLeadsToTwoPortsIsRefused(t *testing.T) {
	n := newNode(t)
	config := pod("web")
	for _, ips := range [][2]string{{}, {"192.0.2.1", "192.0.2.1"}, {"", "0.0.0.0"}, {"::", ""}, {"192.0.2.1", "::ffff:192.0.2.1"}} {
		config.PortMappings = []*cri.PortMapping{{HostPort: 80, ContainerPort: 80, HostIp: ips[0]}, {HostPort: 80, ContainerPort: 81, HostIp: ips[1]}}
		_, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: config})
		wantCode(t, fmt.Sprint(ips), err, "InvalidArgument")
		if err == nil || !strings.Contains(err.Error(), "port_mappings[1]: host_port 80") {
			t.Errorf("%v: the error does not name the field: %v", ips, err)
		}
	}
	n.wantNothingLeft(t)
	config.PortMappings = []*cri.PortMapping{
		{HostPort: 80, ContainerPort: 80}, {HostPort: 80, ContainerPort: 80}, {HostPort: 80, ContainerPort: 81, Protocol: cri.Protocol_UDP},
		{HostPort: 80, ContainerPort: 82, HostIp: "192.0.2.1"}, {HostPort: 80, ContainerPort: 83, HostIp: "192.0.2.2"}, {HostPort: 81, ContainerPort: 80},
	}
	n.run(t, config)
}

// Plugins with the capability cgroupPath get a path, whichever the cgroup driver, which
// gives a slice by its last name only (CONVENTIONS.md of CNI).
func TestPluginsGetThePathOfTheCgroup(t *testing.T) {
	n := newNode(t)
	n.stop()
	n.systemd = true
	n.start(t)
	config := pod("web")
	config.Linux.CgroupParent = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice"
	if got := n.net.pod(n.run(t, config)).CgroupPath; got != config.Linux.CgroupParent {
		t.Errorf("plugins get %q, want %q", got, config.Linux.CgroupParent)
	}
	config = pod("own")
	config.Linux.CgroupParent = ""
	id := n.run(t, config)
	if got, want := n.net.pod(id).CgroupPath, "/crisp.slice/crisp-"+id+".slice"; got != want {
		t.Errorf("plugins get %q, want %q", got, want)
	}
}

// Sysctls of the pod's devices, which the plugins make, are set after the pod was attached. On the
// node's network they are rejected like all sysctls of the node.
func TestSysctlsOfDevicesComeWithTheDevices(t *testing.T) {
	n := newNode(t)
	config := pod("web")
	config.Linux.Sysctls = map[string]string{"net.ipv4.conf.eth0.arp_ignore": "1", "kernel.shm_rmid_forced": "1"}
	id := n.run(t, config)
	sb, err := n.runtime.Sandbox(id)
	if err != nil {
		t.Fatal(err)
	}
	early := sb.Config().Sysctls
	if _, ok := early["net.ipv4.conf.eth0.arp_ignore"]; ok || early["kernel.shm_rmid_forced"] != "1" {
		t.Errorf("set with the namespaces: %v", early)
	}
	if got := n.net.pod(id).Sysctls; len(got) != 1 || got["net/ipv4/conf/eth0/arp_ignore"] != "1" {
		t.Errorf("set with the devices: %v", got)
	}
	config = pod("host")
	config.PortMappings = nil
	config.Linux.Sysctls = map[string]string{"net.ipv4.conf.eth0.arp_ignore": "1"}
	config.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_NODE
	_, err = n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: config})
	wantCode(t, "a device of the node", err, "InvalidArgument")
}
