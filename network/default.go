package network

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/internal/netlist"
	"github.com/crisp-cri/crisp/network/bridge"
)

// defaultFile sorts after any name that an administrator would choose.
const defaultFile = "99-crisp-default.conflist"

// The default network is the plugin of package bridge: a bridge, an address per family, host
// ports and bandwidth limits, and masquerading of traffic that leaves the node.
//
// Names and subnets are derived from the instance, so that several daemons on one node do not
// collide. We own its file: it is rewritten when it differs from what this version would write,
// but keeps its subnets. While IPv6 is off on the host, the file keeps the IPv6 subnet in
// subnetsAside. A subnet that is replaced stays in subnetsEarlier until the first load without
// pods of it. To change the network, put your own configuration into the configuration
// directory.

// defaultList is the part of a configuration that we write and read back.
type defaultList struct {
	CNIVersion string          `json:"cniVersion"`
	Name       string          `json:"name"`
	Plugins    []defaultPlugin `json:"plugins"`
}

type defaultPlugin struct {
	Type         string          `json:"type"`
	Bridge       string          `json:"bridge"`
	Subnets      []netip.Prefix  `json:"subnets"`
	Aside        []netip.Prefix  `json:"subnetsAside,omitempty"` // of IPv6, while the host has none
	Earlier      []netip.Prefix  `json:"subnetsEarlier,omitempty"`
	DataDir      string          `json:"dataDir"`
	Capabilities map[string]bool `json:"capabilities"`
}

// names returns the names of instance's network and of its bridge, of at most 15
// bytes (IFNAMSIZ).
func names(instance string) (network, device string) {
	if instance == "" {
		return "crisp", "crisp0"
	}
	sum := sha256.Sum256([]byte(instance))
	name := "crisp-" + hex.EncodeToString(sum[:4])
	return name, name
}

// Droppers returns the chains of other programs that drop what the pods on instance's default
// network send and receive (bridge.Droppers).
func Droppers(ctx context.Context, instance string) ([]string, error) {
	_, device := names(instance)
	return bridge.Droppers(ctx, device)
}

// candidate returns the nth choice of subnets for instance. The default instance tries
// 10.86.0.0/16 first. The others share 10.192.0.0/11 in pieces of /20, as does the default one
// if its subnet is in use. The IPv6 subnets are unique local addresses (RFC 4193) with a hash as
// global ID.
func candidate(instance string, nth int) []netip.Prefix {
	sum := sha256.Sum256([]byte("subnet of crisp " + instance))
	v4 := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 86, 0, 0}), 16)
	if instance != "" || nth > 0 {
		const pieces = 1 << (20 - 11)
		piece := (int(binary.BigEndian.Uint16(sum[:2])) + nth) % pieces
		v4 = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 192 + byte(piece>>4), byte(piece << 4), 0}), 20)
	}
	v6 := [16]byte{0: 0xfd, 7: byte(nth)}
	copy(v6[1:6], sum[2:7])
	return []netip.Prefix{v4, netip.PrefixFrom(netip.AddrFrom16(v6), 64)}
}

// chooseSubnets returns subnets for the default network that overlap no route of the host. If a
// wide route, such as one to 10.0.0.0/8, overlaps them all, it is enough that no route is as
// narrow as ours, which then wins. On a host without IPv6 it returns no IPv6 subnet.
func (n *Network) chooseSubnets() ([]netip.Prefix, error) {
	if n.o.PodCIDRs != nil {
		return arrange(n.o.PodCIDRs)
	}
	_, device := names(n.o.Instance)
	routes, err := routed(device)
	if err != nil {
		return nil, err
	}
	families := 1
	if n.hasIPv6() {
		families = 2
	}
	for _, strict := range []bool{true, false} {
		for nth := range 64 {
			subnets := candidate(n.o.Instance, nth)[:families]
			if !slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return taken(s, routes, strict) }) {
				return subnets, nil
			}
		}
	}
	return nil, errors.New("every subnet that was tried is in use on this host")
}

// taken reports whether subnet overlaps one of routes; a route wider than subnet counts only if
// strict.
func taken(subnet netip.Prefix, routes []netip.Prefix, strict bool) bool {
	return slices.ContainsFunc(routes, func(r netip.Prefix) bool {
		return subnet.Overlaps(r) && (strict || r.Bits() >= subnet.Bits())
	})
}

// arrange checks the caller's subnets. Their order is that of a pod's addresses.
func arrange(cidrs []netip.Prefix) ([]netip.Prefix, error) {
	var list []netip.Prefix
	for _, c := range cidrs {
		list = append(list, c.Masked())
	}
	if v4, v6 := byFamily(list); len(v4) > 1 || len(v6) > 1 || len(cidrs) == 0 {
		return nil, fmt.Errorf("pod subnets %v: at most one per family", cidrs)
	}
	return list, nil
}

// routed returns the destinations of the host's routes, without the default route and
// those through the device called but.
func routed(but string) ([]netip.Prefix, error) {
	routes, err := netlist.Routes(netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	own := -1
	if link, err := netlink.LinkByName(but); err == nil {
		own = link.Attrs().Index
	}
	var all []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil || r.LinkIndex == own {
			continue
		}
		addr, ok := netip.AddrFromSlice(r.Dst.IP)
		bits, _ := r.Dst.Mask.Size()
		if ok && bits > 0 {
			all = append(all, netip.PrefixFrom(addr.Unmap(), bits))
		}
	}
	return all, nil
}

// hostHasIPv6 reports whether new devices of this host have IPv6.
func hostHasIPv6() bool {
	return kernel.Sysctl("net/ipv6/conf/default/disable_ipv6") == "0"
}

// writeDefault makes sure that the default network's configuration is at path.
func (n *Network) writeDefault(path string) (*bridge.Net, error) {
	there, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	before, earlier := subnetsOf(there)
	d := &bridge.Net{DataDir: n.o.DataDir, Subnets: before}
	d.Name, d.Bridge = names(n.o.Instance)
	if d.Subnets == nil || n.o.PodCIDRs != nil {
		if d.Subnets, err = n.chooseSubnets(); err != nil {
			return nil, err
		}
	}
	var aside []netip.Prefix
	if !n.hasIPv6() {
		if n.o.PodCIDRs == nil {
			d.Subnets, aside = byFamily(d.Subnets)
		}
		if i := slices.IndexFunc(d.Subnets, func(s netip.Prefix) bool { return s.Addr().Is6() }); i >= 0 {
			return nil, fmt.Errorf("the pods' subnet should be %v, but IPv6 is off on this host (net.ipv6.conf.default.disable_ipv6)", d.Subnets[i])
		}
	}
	left, err := keepEarlier(d, slices.Concat(before, earlier), aside)
	if err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(defaultList{
		CNIVersion: "1.1.0", Name: d.Name,
		Plugins: []defaultPlugin{{
			Type: bridge.Type, Bridge: d.Bridge, Subnets: d.Subnets, Aside: aside, Earlier: d.Earlier, DataDir: d.DataDir,
			Capabilities: map[string]bool{"portMappings": true, "bandwidth": true},
		}},
	}, "", "  ")
	if err != nil {
		return nil, err
	}
	data = append(data, '\n')
	if bytes.Equal(data, there) {
		return d, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if len(left) > 0 {
		if err := d.Leave(left); err != nil {
			n.log.Warn("an earlier subnet of the default network is left on its bridge", "err", err)
		}
	}
	return d, atomicfile.Write(path, data, 0o644)
}

// subnetsOf returns the subnets in a configuration that writeDefault wrote, if any.
func subnetsOf(data []byte) (now, earlier []netip.Prefix) {
	var list defaultList
	if json.Unmarshal(data, &list) != nil || len(list.Plugins) == 0 {
		return nil, nil
	}
	p := list.Plugins[0]
	return append(p.Subnets, p.Aside...), p.Earlier
}

// keepEarlier sets d.Earlier to those of earlier that pods have addresses of, and returns the
// others. It leaves out what is in use by d or aside.
func keepEarlier(d *bridge.Net, earlier, aside []netip.Prefix) (left []netip.Prefix, err error) {
	for _, subnet := range earlier {
		if slices.Contains(d.Subnets, subnet) || slices.Contains(aside, subnet) || subnet != subnet.Masked() || !bridge.Fits(subnet) {
			continue
		}
		used, err := d.Uses(subnet)
		switch {
		case err != nil:
			return nil, err
		case used:
			d.Earlier = append(d.Earlier, subnet)
		default:
			left = append(left, subnet)
		}
	}
	return left, nil
}

// byFamily splits subnets.
func byFamily(subnets []netip.Prefix) (v4, v6 []netip.Prefix) {
	for _, s := range subnets {
		if s.Addr().Is4() {
			v4 = append(v4, s)
		} else {
			v6 = append(v6, s)
		}
	}
	return v4, v6
}
