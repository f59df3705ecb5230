package bridge

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/vishvananda/netlink"
	vns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/network/netns"
)

func ipNet(addr netip.Addr, bits int) *net.IPNet {
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits, addr.BitLen())}
}

// defaultOf returns the default route's destination in addr's family.
func defaultOf(addr netip.Addr) *net.IPNet {
	zero := netip.IPv4Unspecified()
	if addr.Is6() {
		zero = netip.IPv6Unspecified()
	}
	return ipNet(zero, 0)
}

// deviceName returns a name of 15 bytes (IFNAMSIZ) for a device of id in this
// network, so that it can be found without any record.
func (n *Net) deviceName(prefix, id string) string {
	sum := sha256.Sum256([]byte(n.Name + "/" + id))
	return prefix + hex.EncodeToString(sum[:])[:15-len(prefix)]
}

func (n *Net) vethName(id string) string { return n.deviceName("veth", id) }

func linkIndex(name string) (int, bool) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return 0, false
	}
	return link.Attrs().Index, true
}

// DeleteLink deletes a device and waits until the kernel has let it go. A device
// that is not there is no error.
func DeleteLink(index int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Index = index
	err := netlink.LinkDel(&netlink.GenericLink{LinkAttrs: attrs})
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete device %d: %w", index, err)
	}
	return nil
}

// ensureBridge makes whatever the bridge lacks: the device, its addresses, and
// the host's forwarding.
func (n *Net) ensureBridge() (netlink.Link, error) {
	link, err := netlink.LinkByName(n.Bridge)
	var absent netlink.LinkNotFoundError
	if errors.As(err, &absent) {
		if err := n.makeBridge(); err != nil {
			return nil, err
		}
		link, err = netlink.LinkByName(n.Bridge)
	}
	if err != nil {
		return nil, fmt.Errorf("bridge %s: %w", n.Bridge, err)
	}
	if link.Type() != "bridge" {
		return nil, fmt.Errorf("device %s is a %s, not a bridge", n.Bridge, link.Type())
	}
	has, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("addresses of bridge %s: %w", n.Bridge, err)
	}
	for _, s := range n.Subnets {
		addr := &netlink.Addr{IPNet: ipNet(s.Addr().Next(), s.Bits())}
		if s.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD // or pods would have no gateway for a second
		}
		if hasAddr(has, addr) {
			continue
		}
		if err := netlink.AddrAdd(link, addr); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("give bridge %s the address %v: %w", n.Bridge, addr.IPNet, err)
		}
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(link); err != nil {
			return nil, fmt.Errorf("bring up bridge %s: %w", n.Bridge, err)
		}
	}
	return link, n.forward()
}

func hasAddr(all []netlink.Addr, addr *netlink.Addr) bool {
	for _, a := range all {
		if a.IPNet.String() == addr.IPNet.String() {
			return true
		}
	}
	return false
}

func (n *Net) makeBridge() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = n.Bridge
	attrs.MTU = uplinkMTU()
	// A bridge without an address of its own takes the least of its ports', which
	// changes as pods come and go, and with it what the pods have in their ARP cache.
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

// uplinkMTU returns the MTU of the device that the default route goes through,
// so that a pod does not send what the host cannot forward whole; 0, the
// kernel's choice, without one.
func uplinkMTU() int {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteList(nil, family)
		if err != nil {
			continue
		}
		for _, r := range routes {
			if r.Dst != nil && !r.Dst.IP.IsUnspecified() {
				continue
			}
			if link, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
				return link.Attrs().MTU
			}
		}
	}
	return 0
}

// forward has the host forward between the bridge and the world, as isGateway of
// the bridge plugin does: for the whole host, by net.ipv4.ip_forward and
// net.ipv6.conf.all.forwarding. It stays so when the network is gone.
func (n *Net) forward() error {
	for _, s := range n.Subnets {
		if s.Addr().Is4() {
			// For host ports on 127.0.0.1: what comes from there may leave by the
			// bridge. nftables.go keeps pods from using it the other way round.
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

// keepRouterAdvertisements keeps the host's own IPv6 default route: once the
// kernel forwards, it listens to router advertisements only where accept_ra is 2
// (ip-sysctl.rst), and a host that has its route from them would be cut off when
// the route expires.
func keepRouterAdvertisements() error {
	if on, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/forwarding"); err == nil && strings.TrimSpace(string(on)) == "1" {
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
		key := "ipv6/conf/" + link.Attrs().Name + "/accept_ra"
		if v, err := os.ReadFile("/proc/sys/net/" + key); err != nil || strings.TrimSpace(string(v)) != "1" {
			continue
		}
		if err := sysctl(key, "2"); err != nil {
			return err
		}
	}
	return nil
}

// sysctl sets net.<key> in the namespace of this thread. A value that is there
// already is not written: /proc/sys may be read-only.
func sysctl(key, value string) error {
	path := filepath.Join("/proc/sys/net", key)
	now, err := os.ReadFile(path)
	if err == nil && strings.TrimSpace(string(now)) == value {
		return nil
	}
	if err == nil {
		err = os.WriteFile(path, []byte(value), 0)
	}
	if err != nil {
		return fmt.Errorf("set %s to %s: %w", path, value, err)
	}
	return nil
}

// addVeth makes the pair: one end as a port of the bridge, the other as a.IfName
// in the pod.
func (n *Net) addVeth(bridge netlink.Link, a *skel.CmdArgs) (netlink.Link, error) {
	pod, err := vns.GetFromPath(a.Netns)
	if err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", a.Netns, err)
	}
	defer pod.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = n.vethName(a.ContainerID)
	attrs.MTU = bridge.Attrs().MTU
	veth := netlink.NewVeth(attrs)
	veth.PeerName = a.IfName
	veth.PeerNamespace = netlink.NsFd(pod)
	err = netlink.LinkAdd(veth)
	if errors.Is(err, unix.EEXIST) {
		// Of an earlier ADD for the same pod, given up or not yet taken away.
		if index, ok := linkIndex(attrs.Name); ok {
			if err := DeleteLink(index); err != nil {
				return nil, err
			}
			err = netlink.LinkAdd(veth)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("make veth pair %s: %w", attrs.Name, err)
	}
	if err := n.plug(bridge, attrs.Name); err != nil {
		if index, ok := linkIndex(attrs.Name); ok {
			err = errors.Join(err, DeleteLink(index))
		}
		return nil, err
	}
	host, err := netlink.LinkByName(attrs.Name)
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", attrs.Name, err)
	}
	return host, nil
}

// plug makes a device a port of the bridge. A port may send back where a packet
// came from (hairpin): a pod may reach itself by the address of a service.
func (n *Net) plug(bridge netlink.Link, name string) error {
	// The port needs no address of its own, and must not believe what pods
	// advertise.
	err := sysctl("ipv6/conf/"+name+"/disable_ipv6", "1")
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // no IPv6 in the kernel
		return err
	}
	host, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("device %s: %w", name, err)
	}
	if err := netlink.LinkSetMaster(host, bridge); err != nil {
		return fmt.Errorf("plug %s into bridge %s: %w", name, n.Bridge, err)
	}
	if err := netlink.LinkSetHairpin(host, true); err != nil {
		return fmt.Errorf("hairpin mode of %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(host); err != nil {
		return fmt.Errorf("bring up %s: %w", name, err)
	}
	return nil
}

// configurePod gives the pod's device its addresses and routes.
func (n *Net) configurePod(a *skel.CmdArgs, addrs []netip.Addr) (link netlink.Link, err error) {
	err = netns.Enter(a.Netns, func() error {
		link, err = netlink.LinkByName(a.IfName)
		if err != nil {
			return err
		}
		for i, addr := range addrs {
			// Neighbours may still know the last owner of the address: tell them.
			announce := "ipv4/conf/" + a.IfName + "/arp_notify"
			config := &netlink.Addr{IPNet: ipNet(addr, n.Subnets[i].Bits())}
			if addr.Is6() {
				announce = "ipv6/conf/" + a.IfName + "/ndisc_notify"
				config.Flags = unix.IFA_F_NODAD // we hand out each address once
				if err := sysctl("ipv6/conf/"+a.IfName+"/accept_ra", "0"); err != nil {
					return err // another pod could become the router
				}
			}
			if err := sysctl(announce, "1"); err != nil {
				return err
			}
			if err := netlink.AddrAdd(link, config); err != nil {
				return fmt.Errorf("address %v: %w", addr, err)
			}
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		for i, addr := range addrs {
			route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: defaultOf(addr), Gw: n.Subnets[i].Addr().Next().AsSlice()}
			if err := netlink.RouteAdd(route); err != nil {
				return fmt.Errorf("default route via %v: %w", route.Gw, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("configure %s of sandbox %s: %w", a.IfName, a.ContainerID, err)
	}
	return link, nil
}

// waitUp waits until the bridge forwards for a new port. The kernel tells the
// bridge of the carrier from a work queue; until then packets are dropped.
func waitUp(ctx context.Context, index int) error {
	const longest = time.Second
	for begin, wait := time.Now(), 100*time.Microsecond; ; wait *= 2 {
		link, err := netlink.LinkByIndex(index)
		if err != nil {
			return fmt.Errorf("device %d: %w", index, err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if time.Since(begin) > longest {
			return fmt.Errorf("device %s has no carrier after %v", link.Attrs().Name, longest)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// dropAddresses takes all addresses but link-local ones from a pod's device, if
// it is there: nobody can reach the pod any more, and another may get its
// addresses.
func dropAddresses(path, ifName string) error {
	return netns.Enter(path, func() error {
		link, err := netlink.LinkByName(ifName)
		var absent netlink.LinkNotFoundError
		if errors.As(err, &absent) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("device %s in %s: %w", ifName, path, err)
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return fmt.Errorf("addresses of %s in %s: %w", ifName, path, err)
		}
		for _, addr := range addrs {
			if addr.Scope == unix.RT_SCOPE_LINK {
				continue
			}
			if err := netlink.AddrDel(link, &addr); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
				return fmt.Errorf("take address %v from %s in %s: %w", addr.IPNet, ifName, path, err)
			}
		}
		return nil
	})
}
