package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/internal/kernel"
)

// checkNode reports what a kubelet and its cluster need of a node and crispd does not. It looks
// for files below root, "/".
func checkNode(c *config.Config, root string, f kernel.Features) []finding {
	list := []finding{
		{"net.ipv4.ip_forward = 1", setting(root, "net/ipv4/ip_forward") == "1",
			"pods reach nothing beyond their node, and kubeadm refuses the node: a line in /etc/sysctl.d", false},
		bridgeFilter(root),
		{"module nf_conntrack", exists(filepath.Join(root, "proc/sys/net/netfilter/nf_conntrack_max")),
			"kube-proxy ends when it sets the limits of connections: a line in /etc/modules-load.d", false},
		{"no swap", !swaps(root),
			"the kubelet does not start, unless failSwapOn is false in its configuration: swapoff -a, and /etc/fstab", false},
	}
	if !f.CgroupV2 {
		list = append(list, finding{"cgroup v2 for the kubelet", false, "a kubelet of 1.35 or newer does not start, unless failCgroupV1 is false in its configuration", false})
	}
	return append(list, kubeletMetrics(c, root)...)
}

// setting returns a value of sysctl(8), "" if there is none.
func setting(root, name string) string {
	data, _ := os.ReadFile(filepath.Join(root, "proc/sys", name))
	return strings.TrimSpace(string(data))
}

// bridgeFilter reports whether traffic between pods over a bridge passes the iptables rules that
// implement services.
func bridgeFilter(root string) finding {
	const follows = "in a network that is a bridge (flannel's, crisp's own) a pod does not reach a service by a pod of its own node: "
	switch setting(root, "net/bridge/bridge-nf-call-iptables") {
	case "1":
		return finding{"module br_netfilter", true, "", false}
	case "":
		return finding{"module br_netfilter", false, follows + "a line in /etc/modules-load.d", false}
	}
	return finding{"net.bridge.bridge-nf-call-iptables = 1", false, follows + "a line in /etc/sysctl.d", false}
}

func swaps(root string) bool {
	data, _ := os.ReadFile(filepath.Join(root, "proc/swaps"))
	return strings.Count(string(data), "\n") > 1 // the first line is the heading
}

// cadvisorDefault is the socket that cAdvisor uses without the flag.
const cadvisorDefault = "/run/containerd/containerd.sock"

// kubeletMetrics reports whether running kubelets will name containers in their metrics; it
// reports nothing if none runs.
func kubeletMetrics(c *config.Config, root string) []finding {
	var list []finding
	processes, _ := filepath.Glob(filepath.Join(root, "proc/[0-9]*/comm"))
	for _, comm := range processes {
		name, err := os.ReadFile(comm)
		if err != nil || strings.TrimSpace(string(name)) != "kubelet" {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(comm), "cmdline"))
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(comm)))
		args := strings.Split(string(line), "\x00")
		list = append(list, finding{
			"metrics of pods by the kubelet (process " + strconv.Itoa(pid) + ")", namesContainers(c, root, args),
			"/metrics/cadvisor names no pod, and /stats/summary has no network: start it with --containerd=" + c.CAdvisorSocket +
				" (before 1.37), or set cadvisor_socket to " + cadvisorDefault + ", or its feature gate PodAndContainerStatsFromCRI", false,
		})
	}
	return list
}

// fromCRI is the kubelet's feature gate in a flag and in its configuration.
var fromCRI = regexp.MustCompile(`PodAndContainerStatsFromCRI"?\s*[=:]\s*"?true`)

// namesContainers reports whether a kubelet with these arguments asks crispd about its
// containers.
func namesContainers(c *config.Config, root string, args []string) bool {
	asked := cadvisorDefault
	for i, arg := range args {
		name, value, joined := strings.Cut(arg, "=")
		if !joined && i+1 < len(args) {
			value = args[i+1]
		}
		switch name {
		case "--containerd":
			asked = value
		case "--config":
			if data, err := os.ReadFile(filepath.Join(root, value)); err == nil && fromCRI.Match(data) {
				return true
			}
		}
	}
	return asked == c.CAdvisorSocket || slices.ContainsFunc(args, fromCRI.MatchString)
}
