// Package bridge is the CNI plugin crisp-bridge: a bridge for the pods of a node with addresses,
// host ports and bandwidth limits, all by netlink. libcni calls it inside the daemon (package
// network); cmd/crisp-bridge is the same as an ordinary plugin. It replaces the chain of bridge,
// host-local, portmap and bandwidth, which takes 30 to 60 ms for ADD and as long for DEL; this
// plugin takes a few.
//
// These exist once per node or once per pod:
//
//	bridge          with the gateway addresses            once
//	nftables table  masquerade, host ports (nftables.go)  once; one element per host port
//	veth pair       one end on the bridge, eth0 in the pod
//	ifb device      for pods with an egress limit (bandwidth.go)
//	<dir>/<addr>    names the pod that has the address (addresses.go)
//	<dir>/ports/<id> the pod's elements of the table (ports.go)
//
// ADD recreates what exists once per node if it is missing or from another version, so nothing
// has to be started; this also restores a flushed firewall, as Heal does.
//
// DEL does not wait for the kernel to destroy the veth pair, which takes a grace period (tens of
// milliseconds): it removes the addresses from the pod's device, which cuts the pod off, and
// leaves the device to Remove or to the end of the namespace.
//
// The tests of package network run it on the kernel, through libcni; the tests here need none.
package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/network/netns"
)

// Type is the plugin's "type" in a configuration.
const Type = "crisp-bridge"

// A Net is one network: the part of a configuration that is the same for all pods.
type Net struct {
	Name    string         `json:"name"`    // of the network and of its nftables table
	Bridge  string         `json:"bridge"`  // device, at most 15 bytes (IFNAMSIZ)
	Subnets []netip.Prefix `json:"subnets"` // at most one per family; the first address of each is the bridge's
	DataDir string         `json:"dataDir"` // the network's directory Name is created there

	// Earlier are former Subnets. Pods may still have their addresses. The bridge keeps its address
	// for these pods, and they the masquerading and their host ports.
	Earlier []netip.Prefix `json:"subnetsEarlier,omitempty"`
}

func (n *Net) dir() string { return filepath.Join(n.DataDir, n.Name) }

// A config is the network configuration that a plugin reads from stdin.
type config struct {
	Net
	base    types.NetConf // version, previous result, DNS
	dynamic struct {
		PortMappings []PortMapping `json:"portMappings"`
		Bandwidth    *Bandwidth    `json:"bandwidth"`
	}
}

// A Plugin executes CNI commands. The zero Plugin is ready for use.
type Plugin struct {
	// Remove gets the indexes of host devices that are no longer needed. If it is nil, they are
	// deleted at once, which waits for the kernel.
	Remove func(index int)
}

// Supported are the CNI versions that the plugin speaks.
var Supported = version.VersionsStartingFrom("0.4.0")

// Call executes command, one of CNI_COMMAND, and returns what the plugin would write to stdout.
func (p *Plugin) Call(ctx context.Context, command string, a *skel.CmdArgs) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c, err := parse(a.StdinData)
	if err != nil {
		return nil, err
	}
	switch command {
	case "ADD":
		result, err := p.add(ctx, c, a)
		if err != nil {
			return nil, err
		}
		converted, err := result.GetAsVersion(c.base.CNIVersion)
		if err != nil {
			return nil, err
		}
		return json.Marshal(converted)
	case "DEL":
		return nil, p.del(ctx, c, a)
	case "CHECK":
		return nil, c.check(a)
	case "STATUS":
		return nil, Ready()
	case "GC":
		var keep []string
		for _, v := range c.base.ValidAttachments {
			keep = append(keep, v.ContainerID)
		}
		return nil, c.Sweep(ctx, keep)
	}
	return nil, fault.Invalid.Errorf("unknown CNI command %q", command)
}

// device matches valid device names: at most IFNAMSIZ-1 bytes, and nothing that nft
// would parse as something else.
var device = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`)

func parse(stdin []byte) (*config, error) {
	c := &config{}
	runtime := struct {
		Config any `json:"runtimeConfig"`
	}{&c.dynamic}
	for _, part := range []any{&c.base, &c.Net, &runtime} {
		if err := json.Unmarshal(stdin, part); err != nil {
			return nil, fault.Invalid.Errorf("configuration: %w", err)
		}
	}
	if !device.MatchString(c.Bridge) {
		return nil, fault.Invalid.Errorf("configuration: %q is not a valid name of a bridge", c.Bridge)
	}
	if c.Name == "" || c.DataDir == "" || len(c.Subnets) == 0 {
		return nil, fault.Invalid.Errorf("configuration: name, dataDir and subnets are needed")
	}
	families := make(map[bool]bool)
	for _, s := range c.Earlier {
		if s != s.Masked() || !Fits(s) {
			return nil, fault.Invalid.Errorf("configuration: earlier subnet %v is too small or not masked", s)
		}
	}
	for _, s := range c.Subnets {
		if s != s.Masked() || !Fits(s) || families[s.Addr().Is4()] {
			return nil, fault.Invalid.Errorf("configuration: subnet %v is too small, not masked or the second of its family", s)
		}
		families[s.Addr().Is4()] = true
	}
	if err := version.ParsePrevResult(&c.base); err != nil {
		return nil, fault.Invalid.Errorf("previous result: %w", err)
	}
	return c, nil
}

// Fits reports whether a subnet has room for a gateway and a pod besides the network's address
// and, for IPv4, the broadcast address: /30 and /126 do.
func Fits(subnet netip.Prefix) bool { return subnet.Addr().BitLen()-subnet.Bits() >= 2 }

// previous returns the addresses in ADD's result, which CHECK and DEL receive; nil if DEL
// received none.
func (c *config) previous() ([]netip.Addr, error) {
	if c.base.PrevResult == nil {
		return nil, nil
	}
	r, err := types100.NewResultFromResult(c.base.PrevResult)
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, ip := range r.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			addrs = append(addrs, a.Unmap())
		}
	}
	return addrs, nil
}

func (p *Plugin) add(ctx context.Context, c *config, a *skel.CmdArgs) (_ *types100.Result, err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)

	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	bridge, err := c.ensureBridge(h)
	if err != nil {
		return nil, err
	}
	if err := c.ensureTable(ctx); err != nil {
		return nil, err
	}
	addrs, err := c.allocate(ctx, a.ContainerID, a.IfName)
	if err != nil {
		return nil, err
	}
	steps.AddContext(ctx, "addresses", func(ctx context.Context) error { return c.release(ctx, a.ContainerID, addrs) })
	index, err := c.addVeth(h, bridge, a)
	if err != nil {
		return nil, err
	}
	steps.Add("veth", func() error { return DeleteLink(index) })
	pod, err := c.configurePod(a, addrs)
	if err != nil {
		return nil, err
	}
	host, err := waitUp(ctx, h, index)
	if err != nil {
		return nil, err
	}
	if len(c.dynamic.PortMappings) > 0 {
		if err := c.openPorts(ctx, a.ContainerID, c.dynamic.PortMappings, addrs); err != nil {
			return nil, err
		}
		steps.AddContext(ctx, "host ports", func(ctx context.Context) error { return c.closePorts(ctx, a.ContainerID) })
	}
	interfaces := []*types100.Interface{
		{Name: c.Bridge, Mac: bridge.Attrs().HardwareAddr.String()},
		{Name: host.Attrs().Name, Mac: host.Attrs().HardwareAddr.String()},
		{Name: a.IfName, Mac: pod.Attrs().HardwareAddr.String(), Sandbox: a.Netns},
	}
	if b := c.dynamic.Bandwidth; b != nil {
		steps.Add("bandwidth limit", func() error { return c.unlimit(a.ContainerID) })
		if err := c.limit(a.ContainerID, host, b); err != nil {
			return nil, err
		}
	}
	return c.result(interfaces, addrs), nil
}

// result returns the CNI result of a pod with addrs; eth0 is the last of interfaces.
func (c *config) result(interfaces []*types100.Interface, addrs []netip.Addr) *types100.Result {
	r := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, Interfaces: interfaces, DNS: c.base.DNS}
	for i, addr := range addrs {
		gateway := c.Subnets[i].Addr().Next()
		r.IPs = append(r.IPs, &types100.IPConfig{
			Interface: types100.Int(len(interfaces) - 1),
			Address:   *ipNet(addr, c.Subnets[i].Bits()),
			Gateway:   gateway.AsSlice(),
		})
		r.Routes = append(r.Routes, &types.Route{Dst: *defaultOf(addr), GW: gateway.AsSlice()})
	}
	return r
}

func (p *Plugin) del(ctx context.Context, c *config, a *skel.CmdArgs) error {
	addrs, err := c.previous()
	if err != nil {
		return fmt.Errorf("previous result: %w", err)
	}
	if err := c.closePorts(ctx, a.ContainerID); err != nil {
		return err
	}
	if a.Netns != "" && netns.Pinned(a.Netns) {
		if err := dropAddresses(a.Netns, a.IfName); err != nil {
			return err
		}
	}
	if err := c.unlimit(a.ContainerID); err != nil {
		return err
	}
	if index, ok := linkIndex(c.vethName(a.ContainerID)); ok {
		if err := p.remove(index); err != nil {
			return err
		}
	}
	return c.release(ctx, a.ContainerID, addrs)
}

// Ready returns nil if ADD can succeed on this host, else what is missing.
func Ready() error {
	if _, err := exec.LookPath("nft"); err != nil {
		return fault.Unavailable.Errorf("%s needs the nft command (package nftables): %w", Type, err)
	}
	return nil
}

func (p *Plugin) remove(index int) error {
	if p.Remove != nil {
		p.Remove(index)
		return nil
	}
	return DeleteLink(index)
}
