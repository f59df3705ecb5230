package network

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/network/netns"
)

// When IPv6 is disabled on a node that had it, pods get IPv4 and earlier pods can be detached; when
// it is enabled again, pods get addresses of the earlier subnet.
func TestIPv6IsSwitchedOffLater(t *testing.T) {
	n := open(t, options(t, ""))
	before := pod(t, "before")
	had := attach(t, n, before).IPs
	if len(had) != 2 {
		t.Skipf("this host has no IPv6: the pod got %v", had)
	}
	setIPv6 := func(off string) {
		for _, conf := range []string{"all", "default"} {
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+conf+"/disable_ipv6", []byte(off), 0); err != nil {
				t.Fatal(err)
			}
		}
		n.load()
	}
	setIPv6("1")
	defer setIPv6("0")
	without := pod(t, "without")
	if got := attach(t, n, without).IPs; len(got) != 1 || !got[0].Is4() {
		t.Errorf("without IPv6 the pod got %v", got)
	}
	detach(t, n, before)
	// Only new devices have IPv6 again, and the bridge is not new.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	n.load()
	again := pod(t, "again")
	got := attach(t, n, again).IPs
	if len(got) != 2 || netip.PrefixFrom(got[1], 64).Masked() != netip.PrefixFrom(had[1], 64).Masked() {
		t.Errorf("with IPv6 again the pod got %v, one before %v", got, had)
	}
	detach(t, n, without)
	detach(t, n, again)
	destroy(t, n)
}

// An IPv6 subnet for the pods of a host without IPv6 is an error of the configuration, not of each
// pod.
func TestIPv6SubnetWithoutIPv6(t *testing.T) {
	n, _ := fresh(t, true)
	n.hasIPv6 = func() bool { return false }
	n.o.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("fd77::/64"), netip.MustParsePrefix("10.77.0.0/16")}
	n.load()
	if err := n.Status(); !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "fd77::/64") || !strings.Contains(err.Error(), "IPv6 is off") {
		t.Errorf("status: %v", err)
	}
}

// Pods have the uplink's MTU: also after the last pod was detached, when the kernel resets the
// bridge to 1500, after the uplink's has changed, and if the bridge was made without an uplink.
func TestPodsHaveTheUplinksMTU(t *testing.T) {
	n := open(t, options(t, ""))
	early := pod(t, "early")
	attach(t, n, early)
	detach(t, n, early)

	attrs := netlink.NewLinkAttrs()
	attrs.Name = "jumbo"
	uplink := &netlink.Veth{LinkAttrs: attrs, PeerName: "jumbo-peer"}
	if err := netlink.LinkAdd(uplink); err != nil {
		t.Fatal(err)
	}
	defer netlink.LinkDel(uplink)
	if err := netlink.LinkSetUp(uplink); err != nil {
		t.Fatal(err)
	}
	route := &netlink.Route{LinkIndex: uplink.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, Scope: unix.RT_SCOPE_LINK}
	for i, mtu := range []int{9000, 9000, 1420, 9001} {
		if err := netlink.LinkSetMTU(uplink, mtu); err != nil {
			t.Fatal(err)
		}
		if err := netlink.RouteReplace(route); err != nil {
			t.Fatal(err)
		}
		p := pod(t, "p"+string(rune('0'+i)))
		attach(t, n, p)
		if got := mtuOf(t, p); got != mtu {
			t.Errorf("pod %d has MTU %d, the uplink %d", i, got, mtu)
		}
		detach(t, n, p)
		if err := n.reaper.finish(); err != nil { // the bridge has no ports
			t.Fatal(err)
		}
	}
	destroy(t, n)
}

// mtuOf returns the MTU of the pod's device.
func mtuOf(t *testing.T, p Pod) (mtu int) {
	t.Helper()
	err := netns.Enter(p.NetNS, func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			mtu = link.Attrs().MTU
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return mtu
}

// gateways returns the bridge's addresses, without link-local ones.
func gateways(t *testing.T) (all []string) {
	t.Helper()
	link, err := netlink.LinkByName("crisp0")
	if err != nil {
		t.Fatal(err)
	}
	list, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		if !a.IP.IsLinkLocalUnicast() {
			all = append(all, a.IPNet.String())
		}
	}
	return all
}

// After a flush of the host's ruleset, running pods get their host ports back without waiting for
// another pod.
func TestFlushedRulesComeBack(t *testing.T) {
	n := open(t, options(t, ""))
	p := pod(t, "p")
	p.Ports = []Port{{Protocol: "tcp", ContainerPort: 80, HostPort: 12345}}
	attach(t, n, p)
	want := ruleset(t)
	nft(t, "flush ruleset")
	n.heal(t.Context())
	if got := ruleset(t); got != want {
		t.Errorf("the rules are\n%s\nwere\n%s", got, want)
	}
	detach(t, n, p)
	destroy(t, n)
	n.heal(t.Context()) // there is nothing to heal, as noLeaks checks
}

// A route that drops packets is no uplink: the kernel keeps IPv6's with the device lo, whose MTU is
// 65536.
func TestUnreachableDefaultIsNoUplink(t *testing.T) {
	n := open(t, options(t, ""))
	change := func(f func(*netlink.Route) error, r netlink.Route) {
		t.Helper()
		if err := f(&r); err != nil {
			t.Fatal(err)
		}
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes { // without another default
		if r.Dst == nil || r.Dst.IP.IsUnspecified() {
			change(netlink.RouteDel, r)
			defer change(netlink.RouteAdd, r)
		}
	}
	all := &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	route := netlink.Route{Dst: all, Type: unix.RTN_UNREACHABLE, Priority: 5000}
	change(netlink.RouteAdd, route)
	defer change(netlink.RouteDel, route)
	p := pod(t, "p")
	attach(t, n, p)
	if got := mtuOf(t, p); got != 1500 {
		t.Errorf("the pod's MTU is %d", got)
	}
	detach(t, n, p)
	destroy(t, n)
}

// After a change of the pods' subnet, running pods keep their way out of the node until they end,
// and nothing is left of their subnet then: it may be that of another network, which is why it
// was changed.
func TestPodsOfAnEarlierSubnet(t *testing.T) {
	o := options(t, "")
	o.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16")}
	n, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { n.Close() }()
	early := pod(t, "early")
	early.Ports = []Port{{Protocol: "tcp", ContainerPort: 80, HostPort: 12345}}
	attach(t, n, early)
	change := func(subnet string) {
		t.Helper()
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		o.PodCIDRs = []netip.Prefix{netip.MustParsePrefix(subnet)}
		var err error
		if n, err = Open(o); err != nil {
			t.Fatal(err)
		}
	}
	had := func(what string) bool {
		gateway := slices.Contains(gateways(t), "10.77.0.1/16")
		rules := ruleset(t)
		out := strings.Contains(rules, "ip saddr 10.77.0.0/16 ip daddr != ")
		port := strings.Contains(rules, "ip saddr 10.77.0.0/16 meta mark set")
		if gateway != out || out != port {
			t.Errorf("%s: gateway %v, masquerading %v, host ports %v:\n%s", what, gateway, out, port, rules)
		}
		return gateway
	}
	for _, subnet := range []string{"10.78.0.0/16", "10.79.0.0/16"} {
		change(subnet)
		p := pod(t, "in-"+subnet[:5])
		if ips := attach(t, n, p).IPs; len(ips) == 0 || !o.PodCIDRs[0].Contains(ips[0]) {
			t.Errorf("a new pod has %v, its subnet is %s", ips, subnet)
		}
		if !had("with " + subnet) {
			t.Errorf("after the change to %s the earlier pod has no way out", subnet)
		}
		detach(t, n, p)
	}
	detach(t, n, early)
	n.load()
	last := pod(t, "last")
	attach(t, n, last)
	if had("without pods of it") {
		t.Error("without pods of the earlier subnet, the node still has it")
	}
	if rules := ruleset(t); strings.Contains(rules, "10.78.0.0") {
		t.Errorf("rules of a subnet that no pod has:\n%s", rules)
	}
	detach(t, n, last)
	destroy(t, n)
}

// A subnet can be made wider or narrower around running pods: the node reaches them at once.
func TestWiderSubnetReachesRunningPods(t *testing.T) {
	for _, test := range []struct{ from, to, gateway string }{
		{"10.77.0.0/20", "10.77.0.0/16", "10.77.0.1/16"},
		{"10.77.0.0/16", "10.77.0.0/20", "10.77.0.1/20"},
		{"fd77::/80", "fd77::/64", "fd77::1/64"},
		{"fd77::/64", "fd77::/80", "fd77::1/80"},
	} {
		o := options(t, "")
		o.PodCIDRs = []netip.Prefix{netip.MustParsePrefix(test.from)}
		n, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		p := pod(t, "p")
		attach(t, n, p)
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		o.PodCIDRs = []netip.Prefix{netip.MustParsePrefix(test.to)}
		n = open(t, o)
		n.heal(t.Context())
		if got := gateways(t); !slices.Equal(got, []string{test.gateway}) {
			t.Errorf("from %s to %s: the bridge has %v, want %s", test.from, test.to, got, test.gateway)
		}
		if rules := ruleset(t); !strings.Contains(rules, "saddr "+test.to) || strings.Contains(rules, "saddr "+test.from) {
			t.Errorf("from %s to %s: the rules are\n%s", test.from, test.to, rules)
		}
		detach(t, n, p)
		destroy(t, n)
	}
}
