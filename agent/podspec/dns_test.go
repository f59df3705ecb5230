package podspec

import (
	"strings"
	"testing"
)

// Servers and domains beyond the limits of resolvers are left out.
func TestDNSLimits(t *testing.T) {
	in := input(t, "  containers: [{name: a, image: i}]\n  dnsConfig: {nameservers: [192.0.2.1, 192.0.2.2, 192.0.2.3]}\n")
	var text strings.Builder
	for range 40 {
		text.WriteString(strings.Repeat("a", 60) + string(rune('a'+text.Len()%20)) + ".example ")
	}
	in.Pod.Spec.DNSConfig.Searches = strings.Fields(text.String())
	in.Pod.Spec.DNSConfig.Searches[0] = strings.Repeat("long.", 60) + "example"
	dns, warnings := in.dnsConfig()
	line := strings.Join(dns.Searches, " ")
	if len(dns.Servers) != 3 || len(dns.Searches) > 32 || len(line) > 2048 || strings.Contains(line, "long.") {
		t.Errorf("%d servers, %d searches of %d bytes", len(dns.Servers), len(dns.Searches), len(line))
	}
	if len(warnings) != 2 || !strings.Contains(warnings[0], "3 name servers") || !strings.Contains(warnings[1], "32 search domains") {
		t.Errorf("warnings %q", warnings)
	}
}
