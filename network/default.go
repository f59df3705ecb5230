package network

import (
	"bytes"
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
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"

	"github.com/crisp-cri/crisp/internal/atomicfile"
)

// defaultFile comes after everything that an administrator would write.
const defaultFile = "99-crisp-default.conflist"

// A defaultNet is the network that crisp brings along: a bridge, an address per
// family from host-local, port mappings and bandwidth limits. What leaves the
// bridge for elsewhere is masqueraded by one nftables table for the whole node
// (host.go), not by the plugin, which would add rules for every pod.
//
// Names and subnets follow from the instance, so that several daemons on one node
// do not meet. Its file is ours: it is written anew when it differs from what
// this version would write, but keeps its subnets. To have it otherwise, put a
// configuration of your own into the configuration directory.
type defaultNet struct {
	Name    string         // of the network and of the nftables table
	Bridge  string         // name of the device, at most 15 bytes (IFNAMSIZ)
	Subnets []netip.Prefix // one per family, IPv4 first
	DataDir string         // of host-local, which appends Name
}

// names returns the names of instance's network and bridge.
func names(instance string) (network, bridge string) {
	if instance == "" {
		return "crisp", "crisp0"
	}
	sum := sha256.Sum256([]byte(instance))
	name := "crisp-" + hex.EncodeToString(sum[:4])
	return name, name
}

// candidate returns the nth choice of subnets for instance. The default instance
// has 10.86.0.0/16 first. The others share 10.192.0.0/11 in pieces of /20, and
// the default one goes there too if its subnet is in use. The IPv6 subnets are
// unique local addresses (RFC 4193) with a hash as global ID.
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

// chooseSubnets returns subnets for the default network that nothing on the host
// has a route to. Where all overlap a wide route, such as one to 10.0.0.0/8, it
// is enough that no route is as narrow as ours: ours then wins. IPv6 is left out
// on a host without it.
func (n *Network) chooseSubnets() ([]netip.Prefix, error) {
	if n.o.PodCIDRs != nil {
		return arrange(n.o.PodCIDRs)
	}
	_, bridge := names(n.o.Instance)
	routes, err := routed(bridge)
	if err != nil {
		return nil, err
	}
	families := 1
	if hostHasIPv6() {
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

// taken says whether subnet overlaps one of routes, of the wide ones only if
// strict.
func taken(subnet netip.Prefix, routes []netip.Prefix, strict bool) bool {
	return slices.ContainsFunc(routes, func(r netip.Prefix) bool {
		return subnet.Overlaps(r) && (strict || r.Bits() >= subnet.Bits())
	})
}

// arrange checks the caller's subnets and puts IPv4 first.
func arrange(cidrs []netip.Prefix) ([]netip.Prefix, error) {
	var v4, v6 []netip.Prefix
	for _, c := range cidrs {
		if c.Addr().Is4() {
			v4 = append(v4, c.Masked())
		} else {
			v6 = append(v6, c.Masked())
		}
	}
	if len(v4) > 1 || len(v6) > 1 || len(cidrs) == 0 {
		return nil, fmt.Errorf("pod subnets %v: at most one per family", cidrs)
	}
	return append(v4, v6...), nil
}

// routed returns what the host has routes to, but for the default route and what
// goes through the device called but.
func routed(but string) ([]netip.Prefix, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
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

// hostHasIPv6 says whether new devices of this host have IPv6.
func hostHasIPv6() bool {
	off, err := os.ReadFile("/proc/sys/net/ipv6/conf/default/disable_ipv6")
	return err == nil && strings.TrimSpace(string(off)) == "0"
}

// writeDefault makes sure that the configuration of the default network is at
// path.
func (n *Network) writeDefault(path string) (*defaultNet, error) {
	d := &defaultNet{DataDir: n.o.DataDir}
	d.Name, d.Bridge = names(n.o.Instance)
	there, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if d.Subnets = subnetsOf(there); d.Subnets == nil || n.o.PodCIDRs != nil {
		if d.Subnets, err = n.chooseSubnets(); err != nil {
			return nil, err
		}
	}
	data, err := d.conflist()
	if err != nil || bytes.Equal(data, there) {
		return d, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return d, atomicfile.Write(path, data, 0o644)
}

// The parts of the default network's configuration that we write and read.
type (
	defaultList struct {
		CNIVersion string `json:"cniVersion"`
		Name       string `json:"name"`
		Plugins    []any  `json:"plugins"`
	}
	bridgePlugin struct {
		Type             string   `json:"type"`
		Bridge           string   `json:"bridge"`
		IsDefaultGateway bool     `json:"isDefaultGateway"`
		HairpinMode      bool     `json:"hairpinMode"`
		IPMasq           bool     `json:"ipMasq"`
		IPAM             ipamPart `json:"ipam"`
	}
	ipamPart struct {
		Type    string      `json:"type"`
		DataDir string      `json:"dataDir"`
		Ranges  [][]ipRange `json:"ranges"`
	}
	metaPlugin struct {
		Type         string          `json:"type"`
		Capabilities map[string]bool `json:"capabilities"`
		Backend      string          `json:"backend,omitempty"`
		SNAT         bool            `json:"snat,omitempty"`
	}
)

// conflist returns the configuration. The bridge plugin is the gateway, which is
// also why it sets net.ipv4.ip_forward (and net.ipv6.conf.all.forwarding); port
// mappings are kept in nftables, as iptables may not be installed.
func (d *defaultNet) conflist() ([]byte, error) {
	bridge := bridgePlugin{
		Type: "bridge", Bridge: d.Bridge, IsDefaultGateway: true, HairpinMode: true,
		IPAM: ipamPart{Type: "host-local", DataDir: d.DataDir},
	}
	for _, s := range d.Subnets {
		bridge.IPAM.Ranges = append(bridge.IPAM.Ranges, []ipRange{{s.String()}})
	}
	data, err := json.MarshalIndent(defaultList{CNIVersion: "1.1.0", Name: d.Name, Plugins: []any{
		bridge,
		metaPlugin{Type: "portmap", Capabilities: map[string]bool{"portMappings": true}, Backend: "nftables", SNAT: true},
		metaPlugin{Type: "bandwidth", Capabilities: map[string]bool{"bandwidth": true}},
	}}, "", "  ")
	return append(data, '\n'), err
}

// subnetsOf returns the subnets in a configuration that conflist wrote, or nil.
func subnetsOf(data []byte) []netip.Prefix {
	list, err := libcni.NetworkConfFromBytes(data)
	if err != nil || len(list.Plugins) == 0 {
		return nil
	}
	var bridge bridgePlugin
	if json.Unmarshal(list.Plugins[0].Bytes, &bridge) != nil {
		return nil
	}
	var subnets []netip.Prefix
	for _, set := range bridge.IPAM.Ranges {
		for _, r := range set {
			s, err := netip.ParsePrefix(r.Subnet)
			if err != nil {
				return nil
			}
			subnets = append(subnets, s)
		}
	}
	return subnets
}
