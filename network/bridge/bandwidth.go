package bridge

import (
	"errors"
	"fmt"
	"math"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Bandwidth is the capability bandwidth (CNI's CONVENTIONS.md): rates in bits per second,
// bursts in bits; a rate of 0 is no limit.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate"`
	IngressBurst uint64 `json:"ingressBurst"`
	EgressRate   uint64 `json:"egressRate"`
	EgressBurst  uint64 `json:"egressBurst"`
}

// latency is how long a packet may wait in a token bucket before it is dropped,
// in seconds.
const latency = 0.025

func (n *Net) ifbName(id string) string { return n.deviceName("ifb-", id) }

// limit puts token buckets (tc-tbf(8)) on both directions of a pod's traffic.
// Traffic to the pod leaves the host's end of its veth pair, which can have a
// queue; traffic from the pod is redirected through an ifb device to get one. A
// queue inside the pod would need no such device, but a pod with NET_ADMIN
// could remove it.
func (n *Net) limit(id string, host netlink.Link, b *Bandwidth) error {
	if b.IngressRate > 0 {
		if err := bucket(host, b.IngressRate, b.IngressBurst); err != nil {
			return err
		}
	}
	if b.EgressRate == 0 {
		return nil
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = n.ifbName(id)
	attrs.MTU = host.Attrs().MTU
	if err := netlink.LinkAdd(&netlink.Ifb{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("make ifb device %s: %w", attrs.Name, err)
	}
	ifb, err := netlink.LinkByName(attrs.Name)
	if err != nil {
		return fmt.Errorf("ifb device %s: %w", attrs.Name, err)
	}
	// Sweep finds the network's ifb devices, which are not on the bridge, by their alias.
	if err := netlink.LinkSetAlias(ifb, n.Name); err != nil {
		return fmt.Errorf("alias of %s: %w", attrs.Name, err)
	}
	if err := netlink.LinkSetUp(ifb); err != nil {
		return fmt.Errorf("bring up %s: %w", attrs.Name, err)
	}
	ingress := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: host.Attrs().Index,
		Handle:    netlink.MakeHandle(0xffff, 0),
		Parent:    netlink.HANDLE_INGRESS,
	}}
	if err := netlink.QdiscAdd(ingress); err != nil {
		return fmt.Errorf("ingress queue of %s: %w", host.Attrs().Name, err)
	}
	redirect := &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: host.Attrs().Index,
			Parent:    ingress.Handle,
			Priority:  1,
			Protocol:  unix.ETH_P_ALL,
		},
		Actions: []netlink.Action{netlink.NewMirredAction(ifb.Attrs().Index)},
	}
	if err := netlink.FilterAdd(redirect); err != nil {
		return fmt.Errorf("redirect %s to %s: %w", host.Attrs().Name, attrs.Name, err)
	}
	return bucket(ifb, b.EgressRate, b.EgressBurst)
}

func (n *Net) unlimit(id string) error {
	if index, ok := linkIndex(n.ifbName(id)); ok {
		return DeleteLink(index)
	}
	return nil
}

func bucket(link netlink.Link, rate, burst uint64) error {
	if burst == 0 || burst/8 > math.MaxUint32 {
		return errors.New("a bandwidth limit needs a burst of at most 4 GB")
	}
	bytes := rate / 8
	tbf := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: link.Attrs().Index,
			Handle:    netlink.MakeHandle(1, 0),
			Parent:    netlink.HANDLE_ROOT,
		},
		Rate:   bytes,
		Limit:  uint32(min(float64(bytes)*latency+float64(burst/8), math.MaxUint32)),
		Buffer: netlink.Xmittime(bytes, uint32(burst/8)),
	}
	if err := netlink.QdiscAdd(tbf); err != nil {
		return fmt.Errorf("token bucket of %s: %w", link.Attrs().Name, err)
	}
	return nil
}
