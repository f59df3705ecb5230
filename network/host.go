package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
)

// host is what the default network needs of the host besides its plugins.
type host struct {
	mu    sync.Mutex
	ready *defaultNet // the network whose table this process has written
}

// prepareHost makes sure that what leaves the pods' subnets is masqueraded. It
// writes the table when this process attaches its first pod, so that a newer
// version's rules replace an older one's, and again if somebody has removed it
// since ("nft flush ruleset", a firewall that starts).
func (n *Network) prepareHost(ctx context.Context, d *defaultNet) error {
	n.host.mu.Lock()
	defer n.host.mu.Unlock()
	if n.host.ready == d && tableExists(d.Name) {
		return nil
	}
	if err := keepRouterAdvertisements(d); err != nil {
		return err
	}
	if err := nft(ctx, d.table()); err != nil {
		return err
	}
	n.host.ready = d
	return nil
}

// table returns the commands that make the network's nftables table, whatever
// was there. nft applies one file as one transaction, so there is no moment
// without masquerading.
//
// Traffic that stays in the subnet is left alone, or pods would see each other
// with the bridge's address where bridged packets pass the IP hooks
// (net.bridge.bridge-nf-call-iptables); so is multicast.
func (d *defaultNet) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {}\ndelete table inet %[1]s\n", d.Name)
	fmt.Fprintf(&b, "table inet %s {\n", d.Name)
	fmt.Fprintf(&b, "  chain postrouting {\n    type nat hook postrouting priority srcnat; policy accept;\n")
	for _, s := range d.Subnets {
		family, multicast := "ip", "224.0.0.0/4"
		if s.Addr().Is6() {
			family, multicast = "ip6", "ff00::/8"
		}
		fmt.Fprintf(&b, "    %s saddr %s %[1]s daddr != { %[2]s, %s } masquerade fully-random\n", family, s, multicast)
	}
	b.WriteString("  }\n}\n")
	return b.String()
}

// Destroy removes the bridge and the nftables table of the default network, and
// what the portmap plugin leaves on a node without port mappings. It is
// fault.WrongState while a pod is attached. The next Attach makes all of it anew.
// net.ipv4.ip_forward stays as it is: others may have come to need it.
func (n *Network) Destroy() error {
	n.host.mu.Lock()
	defer n.host.mu.Unlock()
	ids, err := n.attached()
	if err != nil {
		return err
	}
	if len(ids) > 0 {
		return fault.WrongState.Errorf("network: %d pods are attached", len(ids))
	}
	n.host.ready = nil
	name, bridge := names(n.o.Instance)
	link, err := netlink.LinkByName(bridge)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	var gone netlink.LinkNotFoundError
	if err != nil && !errors.As(err, &gone) {
		return fmt.Errorf("remove bridge %s: %w", bridge, err)
	}
	if !tableExists(name) {
		return nil
	}
	ctx := context.Background()
	if err := nft(ctx, "delete table inet "+name); err != nil {
		return err
	}
	return nil
}

// nft runs commands in nft(8). Its text is checked by the kernel as a whole and
// has a stable form; the netlink messages behind it have not.
func nft(ctx context.Context, commands string) error {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(commands)
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return errors.New("the default network needs the nft command (package nftables), which is not installed")
	}
	if err != nil {
		return fmt.Errorf("nft: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// tableExists says whether the kernel has the nftables table inet name
// (NFT_MSG_GETTABLE): a question of microseconds, asked before each ADD.
func tableExists(name string) bool {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETTABLE, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.NFPROTO_INET, Version: nl.NFNETLINK_V0})
	req.AddData(nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated(name)))
	got, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	return err == nil && len(got) > 0
}

// keepRouterAdvertisements keeps the host's own IPv6 default route. The bridge
// plugin sets net.ipv6.conf.all.forwarding, with which the kernel stops to listen
// to router advertisements unless accept_ra is 2 (ip-sysctl.rst); a host that has
// its route from them would be cut off when the route expires.
func keepRouterAdvertisements(d *defaultNet) error {
	if !hasIPv6(d.Subnets) {
		return nil
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V6)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if r.Protocol != unix.RTPROT_RA {
			continue
		}
		link, err := netlink.LinkByIndex(r.LinkIndex)
		if err != nil {
			continue // it went away, and its route with it
		}
		path := filepath.Join("/proc/sys/net/ipv6/conf", link.Attrs().Name, "accept_ra")
		if v, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(v)) != "1" {
			continue
		}
		if err := os.WriteFile(path, []byte("2"), 0); err != nil {
			return err
		}
	}
	return nil
}

func hasIPv6(subnets []netip.Prefix) bool {
	for _, s := range subnets {
		if s.Addr().Is6() {
			return true
		}
	}
	return false
}
