package bridge

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/netlist"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ensureBridge sets up whatever the bridge lacks: the device, its MTU and addresses, and the
// host's forwarding. The returned link has the MTU for the pods' devices.
func (n *Net) ensureBridge(h *netlink.Handle) (netlink.Link, error) {
	link, err := h.LinkByName(n.Bridge)
	var absent netlink.LinkNotFoundError
	if errors.As(err, &absent) {
		if err := n.makeBridge(); err != nil {
			return nil, err
		}
		link, err = h.LinkByName(n.Bridge)
	}
	if err != nil {
		return nil, fmt.Errorf("bridge %s: %w", n.Bridge, err)
	}
	if link.Type() != "bridge" {
		return nil, fmt.Errorf("device %s is a %s, not a bridge", n.Bridge, link.Type())
	}
	if err := n.fitMTU(h, link); err != nil {
		return nil, err
	}
	has, err := h.AddrList(link, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("addresses of bridge %s: %w", n.Bridge, err)
	}
	for _, s := range n.Subnets {
		addr := gateway(s)
		if s.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD // else pods would have no gateway for a second
			if err := n.enableIPv6(); err != nil {
				return nil, err
			}
		}
		if slices.ContainsFunc(has, func(a netlink.Addr) bool { return a.IPNet.String() == addr.IPNet.String() }) {
			continue
		}
		if err := h.AddrAdd(link, addr); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("give bridge %s the address %v: %w", n.Bridge, addr.IPNet, err)
		}
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := h.LinkSetUp(link); err != nil {
			return nil, fmt.Errorf("bring up bridge %s: %w", n.Bridge, err)
		}
	}
	return link, n.forward()
}

// gateway returns the bridge's address in subnet.
func gateway(subnet netip.Prefix) *netlink.Addr {
	return &netlink.Addr{IPNet: ipNet(subnet.Addr().Next(), subnet.Bits())}
}

// Leave takes the bridge's addresses in subnets from it, and so the host's routes to them. No pod
// may use them (Uses). Where they overlap the network's own, the bridge gets its addresses there
// again at once: the kernel has an IPv6 address with one prefix length only.
func (n *Net) Leave(subnets []netip.Prefix) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(n.Bridge)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("bridge %s: %w", n.Bridge, err)
	}
	var errs []error
	for _, s := range subnets {
		if err := h.AddrDel(link, gateway(s)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			errs = append(errs, fmt.Errorf("take the address in %v from bridge %s: %w", s, n.Bridge, err))
		}
	}
	_, err = n.ensureBridge(h)
	return errors.Join(append(errs, err)...)
}

// enableIPv6 enables IPv6 on the bridge; it is off if it was off on the host when the bridge was
// created. It disables duplicate address detection (accept_dad) for the bridge's link-local
// address, which is derived from the bridge's random hardware address. Detection takes two
// seconds, more on a busy host; meanwhile the kernel solicits no neighbours for forwarded
// packets (ndisc_solicit), and after three seconds it drops those for the first pod.
func (n *Net) enableIPv6() error {
	for _, key := range []string{"accept_dad", "disable_ipv6"} {
		if err := sysctl("ipv6/conf/"+n.Bridge+"/"+key, "0"); err != nil {
			return fmt.Errorf("give bridge %s IPv6: %w", n.Bridge, err)
		}
	}
	return nil
}

// fitMTU sets the bridge's MTU to that of the uplink. The kernel resets a bridge's MTU to 1500
// when its last port goes, unless it was set explicitly (BROPT_MTU_SET_BY_USER); the uplink's
// may change, and may be unknown when the bridge is created.
func (n *Net) fitMTU(h *netlink.Handle, link netlink.Link) error {
	mtu := uplinkMTU()
	if mtu == 0 || mtu == link.Attrs().MTU {
		return nil
	}
	if err := h.LinkSetMTU(link, mtu); err != nil {
		return fmt.Errorf("give bridge %s the MTU %d: %w", n.Bridge, mtu, err)
	}
	link.Attrs().MTU = mtu
	return nil
}

func (n *Net) makeBridge() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = n.Bridge
	// A bridge without its own address takes the lowest of its ports', which changes as pods
	// come and go and makes the pods' ARP caches stale.
	attrs.HardwareAddr = make(net.HardwareAddr, 6)
	if _, err := rand.Read(attrs.HardwareAddr); err != nil {
		return err
	}
	attrs.HardwareAddr[0] = attrs.HardwareAddr[0]&^1 | 2 // locally administered, not multicast
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make bridge %s: %w", n.Bridge, err)
	}
	return nil
}

// uplinkMTU returns the MTU of the default route's device, the smallest if there are several, so
// that a pod sends no packets that the host cannot forward unfragmented; 0 without a default
// route.
func uplinkMTU() int {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlist.Routes(family)
		if err != nil {
			continue
		}
		for _, r := range routes {
			if r.Dst != nil && !r.Dst.IP.IsUnspecified() || r.Type != unix.RTN_UNICAST {
				continue // unreachable and the like of IPv6 have the device lo
			}
			if mtu := leastMTU(r); mtu > 0 {
				return mtu
			}
		}
	}
	return 0
}

// leastMTU returns the smallest MTU of the devices of a route; 0 = none.
func leastMTU(r netlink.Route) int {
	devices := []int{r.LinkIndex}
	for _, hop := range r.MultiPath {
		devices = append(devices, hop.LinkIndex)
	}
	least := 0
	for _, index := range devices {
		if link, err := netlink.LinkByIndex(index); err == nil && (least == 0 || link.Attrs().MTU < least) {
			least = link.Attrs().MTU
		}
	}
	return least
}

// forward enables forwarding between the bridge and other networks, as isGateway of the bridge
// plugin does: for the whole host, by net.ipv4.ip_forward and net.ipv6.conf.all.forwarding.
// These stay on when the network is removed.
func (n *Net) forward() error {
	for _, s := range n.Subnets {
		if s.Addr().Is4() {
			// For host ports on 127.0.0.1: packets from there may leave through the bridge.
			// nftables.go blocks pods in the other direction.
			if err := sysctl("ipv4/conf/"+n.Bridge+"/route_localnet", "1"); err != nil {
				return err
			}
			if err := sysctl("ipv4/ip_forward", "1"); err != nil {
				return err
			}
			continue
		}
		if err := sysctl("ipv6/conf/"+n.Bridge+"/accept_ra", "0"); err != nil {
			return err
		}
		if err := keepRouterAdvertisements(); err != nil {
			return err
		}
		if err := sysctl("ipv6/conf/all/forwarding", "1"); err != nil {
			return err
		}
	}
	return nil
}

// keepRouterAdvertisements keeps the host's own IPv6 default route: once the kernel forwards, it
// accepts router advertisements only where accept_ra is 2 (ip-sysctl.rst), and a host that gets
// its route from them would be cut off when the route expires. At boot, none may have arrived yet,
// so this is done for all devices, except those without such a route that may lead to containers or
// to machines of others.
func keepRouterAdvertisements() error {
	if kernel.Sysctl("net/ipv6/conf/all/forwarding") == "1" {
		return nil
	}
	routes, err := netlist.Routes(netlink.FAMILY_V6)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list links: %w", err)
	}
	for _, link := range links {
		key := "ipv6/conf/" + link.Attrs().Name + "/accept_ra"
		routed := slices.ContainsFunc(routes, func(r netlink.Route) bool {
			return r.Protocol == unix.RTPROT_RA && r.LinkIndex == link.Attrs().Index
		})
		if slices.Contains([]string{"bridge", "veth", "tun", "wireguard"}, link.Type()) && !routed || kernel.Sysctl("net/"+key) != "1" {
			continue
		}
		if err := sysctl(key, "2"); errors.Is(err, fs.ErrNotExist) {
			continue // the device is gone
		} else if err != nil {
			return err
		}
	}
	return nil
}

// sysctl sets net.<key> in the network namespace of this thread. It writes only if the value
// differs, as /proc/sys may be read-only.
func sysctl(key, value string) error {
	if kernel.Sysctl("net/"+key) == value {
		return nil
	}
	return write(key, value)
}

func write(key, value string) error {
	if err := kernel.SetSysctl("net/"+key, value); err != nil {
		return fmt.Errorf("set to %s: %w", value, err)
	}
	return nil
}

// Droppers returns the chains of other programs that drop forwarded packets by their policy, as
// "TABLE CHAIN" with the table's family, where no rule of the table names the bridge. Docker and ufw
// make such chains, and an accept elsewhere does not overrule a drop (nft(8), "Statements"). It finds
// neither what ends with a rule that rejects the rest, as firewalld's, nor rules of iptables-legacy,
// and does not see that a rule for addresses or for "crisp*" lets the pods through.
func Droppers(ctx context.Context, bridge string) ([]string, error) {
	out, err := exec.CommandContext(ctx, "nft", "list", "ruleset").Output()
	if err != nil {
		return nil, err
	}
	var list, inTable []string
	var table, chain string
	named := false // a rule of the table names the bridge
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSuffix(line, "\n")
		switch fields := strings.Fields(line); {
		case strings.HasPrefix(line, "table "):
			table = strings.TrimSuffix(strings.TrimPrefix(line, "table "), " {")
			inTable, named = nil, false
		case line == "}" && !named:
			list = append(list, inTable...)
		case len(fields) == 3 && fields[0] == "chain":
			chain = fields[1]
		case strings.Contains(line, " hook forward ") && strings.Contains(line, "policy drop;"):
			inTable = append(inTable, table+" "+chain)
		case strings.Contains(line, `"`+bridge+`"`):
			named = true
		}
	}
	return list, nil
}
