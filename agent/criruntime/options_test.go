package criruntime

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A pod with its own network gets no name servers on the node's loopback, which it cannot reach,
// but the upstream servers: on a node with systemd-resolved its names resolve.
func TestLoopbackNameServers(t *testing.T) {
	const stub = "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch .\n"
	for _, test := range []struct {
		what, node, behind, spec string
		servers, options         string
		warns                    bool
	}{
		{"systemd-resolved", stub, "nameserver 192.0.2.7\nnameserver 192.0.2.8\n", "", "192.0.2.7 192.0.2.8", "", false},
		{"on the node's network", stub, "nameserver 192.0.2.7\n", "  hostNetwork: true\n", "127.0.0.53", "edns0 trust-ad", false},
		{"one is not of the loopback", "nameserver ::1\nnameserver 192.0.2.9\n", "nameserver 192.0.2.7\n", "", "192.0.2.9", "", false},
		{"no systemd-resolved", "nameserver 127.0.0.1\n", "", "", "", "", true},
		{"systemd-resolved without servers", stub, "search x.example\n", "", "", "edns0 trust-ad", true},
		{"the pod names its own", "nameserver 127.0.0.1\n", "", "  dnsConfig: {nameservers: [192.0.2.5]}\n", "192.0.2.5", "", false},
		{"the pod asks for its loopback", "nameserver 127.0.0.1\n", "", "  dnsConfig: {nameservers: [127.0.0.1]}\n", "127.0.0.1", "", false},
	} {
		t.Run(test.what, func(t *testing.T) {
			d, r, pod := record(t, "  containers: [{name: a, image: \"i:1\"}]\n"+test.spec)
			d.o.ResolvConf, d.resolved = filepath.Join(t.TempDir(), "resolv.conf"), filepath.Join(t.TempDir(), "resolv.conf")
			for path, text := range map[string]string{d.o.ResolvConf: test.node, d.resolved: test.behind} {
				if text == "" {
					continue
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			begin(t, d, pod)
			dns := r.config.DnsConfig
			if got := strings.Join(dns.Servers, " "); got != test.servers || strings.Join(dns.Options, " ") != test.options {
				t.Errorf("servers %q, options %q; want %q, %q", got, dns.Options, test.servers, test.options)
			}
			if got := r.recorded("DNSConfigForming"); got != test.warns {
				t.Errorf("the event was recorded: %v", got)
			}
		})
	}
}
