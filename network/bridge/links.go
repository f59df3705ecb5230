package bridge

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/vishvananda/netlink"
	vns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/backoff"
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

// deviceName returns a name of 15 bytes (IFNAMSIZ-1) for a device of id in this
// network. It is a hash, so that the device can be found without a record.
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

// DeleteLink deletes a device and waits until the kernel has released it. A
// missing device is no error.
func DeleteLink(index int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Index = index
	err := netlink.LinkDel(&netlink.GenericLink{LinkAttrs: attrs})
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete device %d: %w", index, err)
	}
	return nil
}

// addVeth creates a veth pair, one end as a port of the bridge, the other as a.IfName in the
// pod, and returns the index of the bridge's end.
func (n *Net) addVeth(h *netlink.Handle, bridge netlink.Link, a *skel.CmdArgs) (index int, err error) {
	pod, err := vns.GetFromPath(a.Netns)
	if err != nil {
		return 0, fmt.Errorf("network namespace %s: %w", a.Netns, err)
	}
	defer pod.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = n.vethName(a.ContainerID)
	attrs.MTU = bridge.Attrs().MTU
	veth := netlink.NewVeth(attrs)
	veth.PeerName = a.IfName
	veth.PeerNamespace = netlink.NsFd(pod)
	err = h.LinkAdd(veth)
	if errors.Is(err, unix.EEXIST) {
		if err := n.clear(attrs.Name, a); err != nil {
			return 0, err
		}
		err = h.LinkAdd(veth)
	}
	if err != nil {
		return 0, fmt.Errorf("make veth pair %s: %w", attrs.Name, err)
	}
	host, err := h.LinkByName(attrs.Name)
	if err != nil {
		return 0, fmt.Errorf("device %s: %w", attrs.Name, err)
	}
	if err := n.plug(h, bridge, host); err != nil {
		return 0, errors.Join(err, DeleteLink(host.Attrs().Index))
	}
	return host.Attrs().Index, nil
}

// clear deletes what would prevent a new pair: the host's end from an earlier ADD for the same
// pod, and a device in the namespace whose addresses DEL has removed and that waits to be
// deleted. A device that has an address is in use and stays.
func (n *Net) clear(host string, a *skel.CmdArgs) error {
	if index, ok := linkIndex(host); ok {
		if err := DeleteLink(index); err != nil {
			return err
		}
	}
	return netns.Enter(a.Netns, func() error {
		link, err := netlink.LinkByName(a.IfName)
		if err != nil || link.Type() != "veth" {
			return nil // LinkAdd will return the error
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		if err != nil || slices.ContainsFunc(addrs, global) {
			return nil
		}
		return DeleteLink(link.Attrs().Index)
	})
}

// global reports whether an address is more than link-local.
func global(a netlink.Addr) bool { return a.Scope != unix.RT_SCOPE_LINK }

// plug makes a device a port of the bridge, in hairpin mode: a pod may reach itself through the
// address of a service.
func (n *Net) plug(h *netlink.Handle, bridge, host netlink.Link) error {
	name := host.Attrs().Name
	// The port needs no address of its own, and must not accept router advertisements from pods.
	err := sysctl("ipv6/conf/"+name+"/disable_ipv6", "1")
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // no IPv6 in the kernel
		return err
	}
	if err := h.LinkSetMaster(host, bridge); err != nil {
		return fmt.Errorf("plug %s into bridge %s: %w", name, n.Bridge, err)
	}
	if err := h.LinkSetHairpin(host, true); err != nil {
		return fmt.Errorf("hairpin mode of %s: %w", name, err)
	}
	if err := h.LinkSetUp(host); err != nil {
		return fmt.Errorf("bring up %s: %w", name, err)
	}
	return nil
}

// configurePod gives the pod's device its addresses and routes.
func (n *Net) configurePod(a *skel.CmdArgs, addrs []netip.Addr) (link netlink.Link, err error) {
	err = netns.Enter(a.Netns, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		if link, err = h.LinkByName(a.IfName); err != nil {
			return err
		}
		for i, addr := range addrs {
			if err := prepare(a.IfName, addr); err != nil {
				return err
			}
			config := &netlink.Addr{IPNet: ipNet(addr, n.Subnets[i].Bits())}
			if addr.Is6() {
				config.Flags = unix.IFA_F_NODAD // we allocate each address to one pod at a time
			}
			if err := h.AddrAdd(link, config); err != nil {
				return fmt.Errorf("address %v: %w", addr, err)
			}
		}
		if err := h.LinkSetUp(link); err != nil {
			return err
		}
		for i := range addrs {
			if err := addDefault(h, link.Attrs().Index, n.Subnets[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("configure %s of sandbox %s: %w", a.IfName, a.ContainerID, err)
	}
	return link, nil
}

// addDefault adds the default route through the bridge's address in subnet. The kernel may have made no route
// to an IPv6 subnet when the device went up: it takes memory then only if there is some at once.
func addDefault(h *netlink.Handle, index int, subnet netip.Prefix) error {
	route := &netlink.Route{LinkIndex: index, Dst: defaultOf(subnet.Addr()), Gw: subnet.Addr().Next().AsSlice()}
	err := h.RouteAdd(route)
	if errors.Is(err, unix.EHOSTUNREACH) {
		own := &netlink.Route{LinkIndex: index, Dst: ipNet(subnet.Addr(), subnet.Bits()), Protocol: unix.RTPROT_KERNEL}
		err = errors.Join(h.RouteAdd(own), h.RouteAdd(route))
	}
	if err != nil {
		return fmt.Errorf("default route via %v: %w", route.Gw, err)
	}
	return nil
}

// prepare sets the sysctls that the pod's device needs before it gets addr.
func prepare(ifName string, addr netip.Addr) error {
	// Neighbours may still have the address's previous owner in their caches.
	if addr.Is4() {
		return write("ipv4/conf/"+ifName+"/arp_notify", "1")
	}
	// A pod's sysctls may have turned IPv6 off for all devices: the address would be refused.
	if err := sysctl("ipv6/conf/"+ifName+"/disable_ipv6", "0"); err != nil {
		return err
	}
	// Any advertisements would be those of other pods.
	if err := write("ipv6/conf/"+ifName+"/accept_ra", "0"); err != nil {
		return err
	}
	return write("ipv6/conf/"+ifName+"/ndisc_notify", "1")
}

// waitUp returns the device once the bridge forwards for it. The kernel notifies the bridge of a
// new port's carrier from a work queue; until then packets are dropped.
func waitUp(ctx context.Context, h *netlink.Handle, index int) (netlink.Link, error) {
	const longest = time.Second
	pause := backoff.New(100*time.Microsecond, longest)
	for begin := time.Now(); ; {
		link, err := h.LinkByIndex(index)
		if err != nil {
			return nil, fmt.Errorf("device %d: %w", index, err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return link, nil
		}
		if time.Since(begin) > longest {
			return nil, fmt.Errorf("device %s has no carrier after %v", link.Attrs().Name, longest)
		}
		if err := pause.Wait(ctx); err != nil {
			return nil, err
		}
	}
}

// dropAddresses removes all addresses except link-local ones from a pod's device, if it exists:
// the pod becomes unreachable, and another may get its addresses.
func dropAddresses(path, ifName string) error {
	return netns.Enter(path, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		link, err := h.LinkByName(ifName)
		var absent netlink.LinkNotFoundError
		if errors.As(err, &absent) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("device %s in %s: %w", ifName, path, err)
		}
		addrs, err := h.AddrList(link, netlink.FAMILY_ALL)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return fmt.Errorf("addresses of %s in %s: %w", ifName, path, err)
		}
		for _, addr := range addrs {
			if !global(addr) {
				continue
			}
			if err := h.AddrDel(link, &addr); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
				return fmt.Errorf("take address %v from %s in %s: %w", addr.IPNet, ifName, path, err)
			}
		}
		return nil
	})
}
