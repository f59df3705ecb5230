package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/network/netns"
)

// A pod on the default network has an address of each family, reaches other pods with its own
// address and other hosts with the host's, and leaves nothing.
func TestAttachDualStack(t *testing.T) {
	needsRoot(t)
	world := outside(t)
	serve(t, world, 80)
	n := open(t, options(t, ""))
	if err := n.Status(); err != nil {
		t.Fatalf("not ready: %v", err)
	}
	a, b := pod(t, "a"), pod(t, "b")
	ra, rb := attach(t, n, a), attach(t, n, b)
	for _, r := range []Result{ra, rb} {
		if len(r.IPs) != 2 || !r.IPs[0].Is4() || !r.IPs[1].Is6() {
			t.Fatalf("result is %+v", r)
		}
	}
	serve(t, b.NetNS, 80)
	for i := range 2 {
		wantAsk(t, a.NetNS, netip.AddrPortFrom(rb.IPs[i], 80).String(), ra.IPs[i].String())
		wantAsk(t, "", netip.AddrPortFrom(rb.IPs[i], 80).String(), "")
	}
	wantAsk(t, a.NetNS, "198.51.100.2:80", "198.51.100.1")
	wantAsk(t, a.NetNS, "[2001:db8::2]:80", "2001:db8::1")

	if err := n.Check(t.Context(), a); err != nil {
		t.Errorf("check: %v", err)
	}
	if _, err := n.Attach(t.Context(), a); !errors.Is(err, fault.Exists) {
		t.Errorf("second attach: %v", err)
	}
	for _, p := range []Pod{a, b, a, pod(t, "never")} {
		detach(t, n, p)
	}
	if err := n.Check(t.Context(), a); !errors.Is(err, fault.NotFound) {
		t.Errorf("check of a detached pod: %v", err)
	}
	destroy(t, n)
	destroy(t, n)

	// The next pod restores what Destroy has removed.
	attach(t, n, a)
	wantAsk(t, a.NetNS, "198.51.100.2:80", "198.51.100.1")
	// It also restores rules that a firewall has flushed.
	nft(t, "delete table inet crisp")
	attach(t, n, b)
	wantAsk(t, a.NetNS, "198.51.100.2:80", "198.51.100.1")
	detach(t, n, a)
	detach(t, n, b)
	destroy(t, n)
}

// Parameters of the pod's device are set once it is there. One that cannot be set undoes the
// attachment, and the corrected pod is attached.
func TestSysctlsOfDevices(t *testing.T) {
	needsRoot(t)
	n := open(t, options(t, ""))
	p := pod(t, "web")
	p.Sysctls = map[string]string{"net/ipv4/conf/eth0/arp_ignore": "1", "net/ipv4/conf/eth1/arp_ignore": "1"}
	if _, err := n.Attach(t.Context(), p); !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "eth1") {
		t.Errorf("a parameter of a device that is not there: %v", err)
	}
	delete(p.Sysctls, "net/ipv4/conf/eth1/arp_ignore")
	attach(t, n, p)
	err := netns.Enter(p.NetNS, func() error {
		got, err := os.ReadFile("/proc/sys/net/ipv4/conf/eth0/arp_ignore")
		if string(got) != "1\n" {
			t.Errorf("the parameter is %q", got)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	detach(t, n, p)
	destroy(t, n)
}

// A host port answers on every address of the host, on its loopback, to other pods and to the pod
// itself, and is closed with the pod; also on hosts where bridged packets pass the IP hooks
// (br_netfilter).
func TestHostPort(t *testing.T) {
	for _, filter := range []string{"1", "0"} {
		t.Run("br_netfilter "+filter, func(t *testing.T) {
			needsRoot(t)
			for _, name := range []string{"iptables", "ip6tables"} {
				err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+name, []byte(filter), 0)
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Fatal(err)
				}
			}
			testHostPort(t)
		})
	}
}

func testHostPort(t *testing.T) {
	world := outside(t)
	n := open(t, options(t, ""))
	p, other := pod(t, "web"), pod(t, "other")
	p.Ports = []Port{
		{Protocol: "tcp", ContainerPort: 80, HostPort: 12000},
		{Protocol: "tcp", ContainerPort: 80, HostPort: 12001, HostIP: "198.51.100.1"},
		{Protocol: "tcp", ContainerPort: 80}, // CRI: host port 0 means none
	}
	attach(t, n, p)
	attach(t, n, other)
	serve(t, p.NetNS, 80)

	wantAsk(t, world, "198.51.100.1:12000", "198.51.100.2") // the client's address is kept
	wantAsk(t, world, "[2001:db8::1]:12000", "2001:db8::2")
	wantAsk(t, "", "127.0.0.1:12000", "")
	wantAsk(t, "", "198.51.100.1:12000", "")
	wantAsk(t, "", "[2001:db8::1]:12000", "")
	wantAsk(t, other.NetNS, "198.51.100.1:12000", "")
	wantAsk(t, p.NetNS, "198.51.100.1:12000", "") // hairpin
	wantAsk(t, p.NetNS, "[2001:db8::1]:12000", "")
	wantAsk(t, world, "198.51.100.1:12001", "198.51.100.2")
	if _, err := ask(t, "", "127.0.0.1:12001"); err == nil {
		t.Error("a port of one host address answers on another")
	}
	if err := n.Check(t.Context(), p); err != nil {
		t.Errorf("check: %v", err)
	}

	detach(t, n, p)
	for _, addr := range []string{"127.0.0.1:12000", "198.51.100.1:12000", "[2001:db8::1]:12000", "198.51.100.1:12001"} {
		if _, err := ask(t, "", addr); err == nil {
			t.Errorf("%s answers after detach", addr)
		}
	}
	detach(t, n, other)
	destroy(t, n)
}

// A host port of 127.0.0.1 answers the host alone, as a listener there would: a neighbour that
// routes 127.0.0.1 to the host does not reach it.
func TestHostPortOfLoopback(t *testing.T) {
	needsRoot(t)
	world := outside(t)
	n := open(t, options(t, ""))
	p := pod(t, "web")
	p.Ports = []Port{
		{Protocol: "tcp", ContainerPort: 80, HostPort: 12000},
		{Protocol: "tcp", ContainerPort: 80, HostPort: 12001, HostIP: "127.0.0.1"},
	}
	attach(t, n, p)
	serve(t, p.NetNS, 80)
	err := netns.Enter(world, func() error {
		link, err := netlink.LinkByName("uplink")
		if err != nil {
			return err
		}
		loopback := net.IPNet{IP: net.IPv4(127, 0, 0, 1), Mask: net.CIDRMask(32, 32)}
		return errors.Join(kernel.SetSysctl("net/ipv4/conf/uplink/route_localnet", "1"),
			netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: &loopback, Gw: net.IPv4(198, 51, 100, 1), Src: net.IPv4(198, 51, 100, 2)}))
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{"127.0.0.1:12000", "127.0.0.1:12001"} {
		if seen, err := ask(t, world, addr); err == nil {
			t.Errorf("%s answers a neighbour, %s", addr, seen)
		}
		wantAsk(t, "", addr, "")
	}
	wantAsk(t, world, "198.51.100.1:12000", "198.51.100.2")
	detach(t, n, p)
	destroy(t, n)
}

// A firewall that drops what pods send is found, until it has a rule for them.
func TestDroppers(t *testing.T) {
	needsRoot(t)
	world := outside(t)
	o := options(t, "")
	n := open(t, o)
	p := pod(t, "web")
	attach(t, n, p)
	serve(t, world, 80)
	check := func(reaches bool, want ...string) {
		t.Helper()
		if got, err := Droppers(t.Context(), o.Instance); err != nil || !slices.Equal(got, want) {
			t.Errorf("droppers are %q, %v, want %q", got, err, want)
		}
		if _, err := ask(t, p.NetNS, "198.51.100.2:80"); (err == nil) != reaches {
			t.Errorf("the pod asks a neighbour: %v", err)
		}
	}
	check(true)
	nft(t, "add table ip filter; add chain ip filter FORWARD { type filter hook forward priority filter; policy drop; }")
	defer nft(t, "delete table ip filter")
	check(false, "ip filter FORWARD")
	_, device := names(o.Instance)
	nft(t, fmt.Sprintf("add rule ip filter FORWARD iifname %[1]s accept; add rule ip filter FORWARD oifname %[1]s accept", device))
	check(true)
	detach(t, n, p)
	destroy(t, n)
}

// A host that forwards once it has pods continues to accept router advertisements where it did,
// also where none has arrived yet.
func TestRouterAdvertisementsAreKept(t *testing.T) {
	needsRoot(t)
	outside(t)
	for name, value := range map[string]string{"all/forwarding": "0", "uplink/accept_ra": "1", "lo/accept_ra": "1"} {
		if err := kernel.SetSysctl("net/ipv6/conf/"+name, value); errors.Is(err, fs.ErrNotExist) {
			t.Skip("this host has no IPv6")
		} else if err != nil {
			t.Fatal(err)
		}
	}
	n := open(t, options(t, ""))
	p := pod(t, "web")
	attach(t, n, p)
	// A veth may lead to another runtime's container. lo is treated like any device that is there.
	for name, want := range map[string]string{"all/forwarding": "1", "uplink/accept_ra": "1", "lo/accept_ra": "2"} {
		if got := kernel.Sysctl("net/ipv6/conf/" + name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	detach(t, n, p)
	destroy(t, n)
}

// The first pod of a node can be reached over IPv6 from outside at once, however long duplicate
// address detection takes on new devices of the host.
func TestFirstPodIsReachedOverIPv6(t *testing.T) {
	needsRoot(t)
	const transmits = "/proc/sys/net/ipv6/conf/default/dad_transmits" // a second each
	had, err := os.ReadFile(transmits)
	if err != nil {
		t.Skipf("this host has no IPv6: %v", err)
	}
	world := outside(t)
	if err := os.WriteFile(transmits, []byte("30"), 0); err != nil {
		t.Fatal(err)
	}
	defer os.WriteFile(transmits, had, 0)
	n := open(t, options(t, ""))
	p := pod(t, "web")
	p.Ports = []Port{{Protocol: "tcp", ContainerPort: 80, HostPort: 12000}}
	attach(t, n, p)
	serve(t, p.NetNS, 80)
	wantAsk(t, world, "[2001:db8::1]:12000", "2001:db8::2")
	detach(t, n, p)
	destroy(t, n)
}

// Both directions of a pod with limits have a token bucket of the given rate.
func TestBandwidth(t *testing.T) {
	n := open(t, options(t, ""))
	p := pod(t, "slow")
	p.IngressBPS, p.EgressBPS = 10e6, 20e6
	r := attach(t, n, p)
	serve(t, p.NetNS, 80)
	wantAsk(t, "", net.JoinHostPort(r.IPs[0].String(), "80"), "")

	rates := make(map[uint64]bool)
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		qdiscs, err := netlink.QdiscList(l)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range qdiscs {
			if tbf, ok := q.(*netlink.Tbf); ok {
				rates[tbf.Rate] = true // bytes per second
			}
		}
	}
	if len(rates) != 2 || !rates[10e6/8] || !rates[20e6/8] {
		t.Errorf("rates are %v", rates)
	}
	if err := n.Check(t.Context(), p); err != nil {
		t.Errorf("check: %v", err)
	}
	detach(t, n, p)
	destroy(t, n)
}
