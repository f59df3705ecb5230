package bridge

import (
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/vishvananda/netlink"

	"github.com/crisp-cri/crisp/network/netns"
)

// check returns an error for the first missing part of ADD's work.
func (c *config) check(a *skel.CmdArgs) error {
	addrs, err := c.previous()
	if err != nil {
		return fmt.Errorf("previous result: %w", err)
	}
	bridge, ok := linkIndex(c.Bridge)
	if !ok {
		return fmt.Errorf("bridge %s does not exist", c.Bridge)
	}
	host, err := netlink.LinkByName(c.vethName(a.ContainerID))
	if err != nil {
		return fmt.Errorf("device %s: %w", c.vethName(a.ContainerID), err)
	}
	if host.Attrs().MasterIndex != bridge {
		return fmt.Errorf("device %s is not on bridge %s", host.Attrs().Name, c.Bridge)
	}
	for _, addr := range addrs {
		if owner, err := c.owner(addr); err != nil || owner != a.ContainerID {
			return fmt.Errorf("address %v belongs to %q", addr, owner)
		}
	}
	if !chainExists(c.Name, c.marker()) {
		return fmt.Errorf("nftables table %s does not exist", c.Name)
	}
	if b := c.dynamic.Bandwidth; b != nil && b.EgressRate > 0 {
		if _, ok := linkIndex(c.ifbName(a.ContainerID)); !ok {
			return fmt.Errorf("device %s does not exist", c.ifbName(a.ContainerID))
		}
	}
	return checkPod(a, addrs)
}

func checkPod(a *skel.CmdArgs, addrs []netip.Addr) error {
	return netns.Enter(a.Netns, func() error {
		link, err := netlink.LinkByName(a.IfName)
		if err != nil {
			return fmt.Errorf("device %s in %s: %w", a.IfName, a.Netns, err)
		}
		has, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			return fmt.Errorf("addresses of %s in %s: %w", a.IfName, a.Netns, err)
		}
		there := make(map[netip.Addr]bool)
		for _, h := range has {
			if addr, ok := netip.AddrFromSlice(h.IP); ok {
				there[addr.Unmap()] = true
			}
		}
		for _, addr := range addrs {
			if !there[addr] {
				return fmt.Errorf("%s in %s does not have address %v", a.IfName, a.Netns, addr)
			}
		}
		return nil
	})
}
