package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/config"
	"github.com/crisp-cri/crisp/internal/kernel"
)

// lacking returns the findings, as "what: follows", on a machine with these files.
func lacking(t *testing.T, v2 bool, files map[string]string) []string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var list []string
	for _, f := range checkNode(&config.Config{CAdvisorSocket: "/run/crisp/cadvisor.sock"}, root, kernel.Features{CgroupV2: v2}) {
		if !f.ok {
			list = append(list, f.what+": "+f.follows)
		}
	}
	return list
}

// Everything that a cluster's node lacks is reported, with the consequence and the setting to
// change.
func TestCheckNode(t *testing.T) {
	const sys, heading = "proc/sys/net/", "Filename Type Size Used Priority\n"
	all := map[string]string{sys + "ipv4/ip_forward": "1\n", sys + "bridge/bridge-nf-call-iptables": "1\n", sys + "netfilter/nf_conntrack_max": "65536\n", "proc/swaps": heading}
	with := func(name, text string) map[string]string {
		files := map[string]string{name: text}
		for n, text := range all {
			if n != name {
				files[n] = text
			}
		}
		return files
	}
	if list := lacking(t, true, all); len(list) > 0 {
		t.Errorf("a machine that has everything lacks %q", list)
	}
	for name, tt := range map[string]struct {
		v2    bool
		files map[string]string
		want  []string
	}{
		"forwarding":    {true, with(sys+"ipv4/ip_forward", "0\n"), []string{"net.ipv4.ip_forward", "kubeadm refuses"}},
		"bridge sysctl": {true, with(sys+"bridge/bridge-nf-call-iptables", "0\n"), []string{"bridge-nf-call-iptables = 1", "/etc/sysctl.d"}},
		"swap":          {true, with("proc/swaps", heading+"/swap file 1 0 -2\n"), []string{"no swap", "failSwapOn"}},
		"cgroup v1":     {false, all, []string{"cgroup v2", "failCgroupV1"}},
	} {
		list := lacking(t, tt.v2, tt.files)
		if len(list) != 1 || !strings.Contains(list[0], tt.want[0]) || !strings.Contains(list[0], tt.want[1]) {
			t.Errorf("%s: lacks %q, want %q", name, list, tt.want)
		}
	}
	if list := lacking(t, true, nil); len(list) != 3 || !strings.Contains(list[1], "module br_netfilter") || !strings.Contains(list[1], "/etc/modules-load.d") || !strings.Contains(list[2], "nf_conntrack") {
		t.Errorf("a machine without modules lacks %q", list)
	}
}

// If the kubelet queries another daemon than crispd, its metrics do not name pods.
func TestCheckMetrics(t *testing.T) {
	const socket = "--containerd=/run/crisp/cadvisor.sock"
	for args, ok := range map[string]bool{
		"kubelet": false,
		"kubelet --config=/var/lib/kubelet/config.yaml " + socket:                  true,
		"kubelet --containerd /run/crisp/cadvisor.sock":                            true,
		"kubelet --containerd":                                                     false,
		"kubelet --containerd=/run/containerd/containerd.sock":                     false,
		"kubelet --feature-gates=A=false,PodAndContainerStatsFromCRI=true":         true,
		"kubelet --feature-gates=PodAndContainerStatsFromCRI=false":                false,
		"kubelet --config /var/lib/kubelet/config.yaml --kubeconfig=/etc/k8s/conf": false,
		"kubelet --config /etc/gates.yaml":                                         true,
	} {
		list := lacking(t, true, map[string]string{
			"proc/7/comm": "kubelet\n", "proc/7/cmdline": strings.ReplaceAll(args, " ", "\x00") + "\x00", "proc/8/comm": "sh\n",
			"etc/gates.yaml": "featureGates:\n  PodAndContainerStatsFromCRI: true\n", "var/lib/kubelet/config.yaml": "featureGates: {A: true}\n",
			"proc/sys/net/ipv4/ip_forward": "1", "proc/sys/net/bridge/bridge-nf-call-iptables": "1", "proc/sys/net/netfilter/nf_conntrack_max": "1",
		})
		if reported := len(list) == 1 && strings.Contains(list[0], "process 7") && strings.Contains(list[0], socket); reported == ok || len(list) > 1 {
			t.Errorf("%s: lacks %q", args, list)
		}
	}
	at := &config.Config{CAdvisorSocket: "/run/containerd/containerd.sock"}
	if !namesContainers(at, "/", []string{"kubelet"}) {
		t.Error("a kubelet asks where containerd would be, and crispd answers there")
	}
}
