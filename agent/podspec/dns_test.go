package podspec

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Each DNS policy, with a cluster's name server and without.
func TestDNSPolicies(t *testing.T) {
	node := []string{"192.0.2.53"}
	for _, test := range []struct {
		spec     string
		cluster  []string
		servers  []string
		searches string
		options  string
	}{
		{"", nil, node, "a.example b.example", "ndots:2 rotate"},
		{"", []string{"10.9.0.10"}, []string{"10.9.0.10"}, "default.svc.c.test svc.c.test c.test a.example b.example", "ndots:5"},
		{"  dnsPolicy: Default\n", []string{"10.9.0.10"}, node, "a.example b.example", "ndots:2 rotate"},
		{"  hostNetwork: true\n", []string{"10.9.0.10"}, node, "a.example b.example", "ndots:2 rotate"},
		{"  hostNetwork: true\n  dnsPolicy: ClusterFirstWithHostNet\n", []string{"10.9.0.10"}, []string{"10.9.0.10"}, "default.svc.c.test svc.c.test c.test a.example b.example", "ndots:5"},
		{"  dnsPolicy: None\n  dnsConfig: {nameservers: [192.0.2.1], searches: [x.example]}\n", nil, []string{"192.0.2.1"}, "x.example", ""},
	} {
		in := input(t, "  containers: [{name: a, image: i}]\n"+test.spec)
		in.Node.ClusterDNS, in.Node.ClusterDomain = test.cluster, "c.test"
		dns, _ := in.dnsConfig()
		if diff := cmp.Diff(test.servers, dns.Servers); diff != "" || strings.Join(dns.Searches, " ") != test.searches || strings.Join(dns.Options, " ") != test.options {
			t.Errorf("%s, cluster %v: %v", test.spec, test.cluster, dns)
		}
	}
}

// What resolvers cannot use is left out.
func TestDNSLimits(t *testing.T) {
	in := input(t, "  containers: [{name: a, image: i}]\n  dnsConfig: {nameservers: [192.0.2.1, 192.0.2.2, 192.0.2.3]}\n")
	var text strings.Builder
	for range 40 {
		text.WriteString(strings.Repeat("a", 60) + string(rune('a'+text.Len()%20)) + ".example ")
	}
	in.Pod.Spec.DNSConfig.Searches = strings.Fields(text.String())
	in.Pod.Spec.DNSConfig.Searches[0] = strings.Repeat("long.", 60) + "example"
	dns, told := in.dnsConfig()
	line := strings.Join(dns.Searches, " ")
	if len(dns.Servers) != 3 || len(dns.Searches) > 32 || len(line) > 2048 || strings.Contains(line, "long.") {
		t.Errorf("%d servers, %d searches of %d bytes", len(dns.Servers), len(dns.Searches), len(line))
	}
	if len(told) != 2 || !strings.Contains(told[0], "3 name servers") || !strings.Contains(told[1], "32 search domains") {
		t.Errorf("told %q", told)
	}
}
