package network

import (
	"net/netip"
	"testing"
)

// Two daemons on one node, with the same sandbox IDs and with host ports of their
// own, do not affect each other, even when one destroys its network.
func TestTwoInstances(t *testing.T) {
	needsRoot(t)
	world := outside(t)
	serve(t, world, 80)
	one, two := open(t, options(t, "one")), open(t, options(t, "two"))
	a, b := pod(t, "same"), pod(t, "same")
	a.Ports = []Port{{Protocol: "tcp", ContainerPort: 80, HostPort: 12000}}
	b.Ports = []Port{{Protocol: "tcp", ContainerPort: 80, HostPort: 12001}}
	ra, rb := attach(t, one, a), attach(t, two, b)
	serve(t, a.NetNS, 80)
	serve(t, b.NetNS, 80)
	works := func(p Pod, r Result, port string) {
		t.Helper()
		wantAsk(t, p.NetNS, "198.51.100.2:80", "198.51.100.1")
		wantAsk(t, "", netip.AddrPortFrom(r.IPs[0], 80).String(), "")
		wantAsk(t, "", "127.0.0.1:"+port, "")
	}
	works(a, ra, "12000")
	works(b, rb, "12001")
	detach(t, one, a)
	destroy(t, one)
	works(b, rb, "12001")
	detach(t, two, b)
	destroy(t, two)
}
