package server

import (
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A bandwidth limit that cannot be parsed is refused with its annotation's name, and the
// corrected pod runs. On the node's network it limits nothing.
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
