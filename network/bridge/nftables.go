package bridge

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// hairpinMark marks the packets of pods to a host port, from one hook to the next. The portmap
// plugin uses the same bit for this; Kubernetes uses the two above it.
const hairpinMark = "0x2000"

// rules returns the network's nftables table without host ports, and without the marker chain
// that names the version of these rules.
//
// A host port is an element of a map: of any4 and any6 for all addresses of the host, of one4
// and one6 for a particular one. Packets of a pod to a host port are masqueraded with the
// bridge's address; otherwise the answer would go straight to the pod, which would not recognize
// it. There are no rules for ::1: Linux has no route_localnet for IPv6.
//
// Traffic within the subnets is not masqueraded: where bridged packets pass these hooks
// (net.bridge.bridge-nf-call-iptables), pods would see each other with the bridge's address. Nor
// is multicast. The chain raw keeps pods out of the host's 127.0.0.0/8, which route_localnet
// would let them reach. Other machines do not reach host ports of 127.0.0.0/8 either: the kernel
// drops what arrives for these addresses, but only after prerouting, where it would have the pod's.
func (n *Net) rules() string {
	var mark, masquerade strings.Builder
	all := widest(slices.Concat(n.Subnets, n.Earlier))
	for _, s := range all {
		family, multicast := "ip", "224.0.0.0/4"
		if s.Addr().Is6() {
			family, multicast = "ip6", "ff00::/8"
		}
		var within strings.Builder
		for _, other := range all {
			if other.Addr().Is4() == s.Addr().Is4() {
				fmt.Fprintf(&within, "%s, ", other)
			}
		}
		fmt.Fprintf(&mark, "    %s saddr %s meta mark set meta mark | %s\n", family, s, hairpinMark)
		fmt.Fprintf(&masquerade, "    %s saddr %s %[1]s daddr != { %[3]s%[4]s } masquerade fully-random\n", family, s, within.String(), multicast)
	}
	return `
  map any4 { type inet_proto . inet_service : ipv4_addr . inet_service; }
  map any6 { type inet_proto . inet_service : ipv6_addr . inet_service; }
  map one4 { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; }
  map one6 { type ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service; }
  chain hostports {
` + mark.String() + `
    dnat ip addr . port to ip daddr . meta l4proto . th dport map @one4
    dnat ip addr . port to meta l4proto . th dport map @any4
    dnat ip6 addr . port to ip6 daddr . meta l4proto . th dport map @one6
    dnat ip6 addr . port to meta l4proto . th dport map @any6
  }
  chain prerouting {
    type nat hook prerouting priority dstnat; policy accept;
    ip daddr 127.0.0.0/8 return
    fib daddr type local jump hostports
  }
  chain output {
    type nat hook output priority -100; policy accept;
    ip6 daddr ::1 return
    fib daddr type local jump hostports
  }
  chain raw {
    type filter hook prerouting priority raw; policy accept;
    iifname "` + n.Bridge + `" ip daddr 127.0.0.0/8 drop
  }
  chain postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr 127.0.0.0/8 oifname "` + n.Bridge + `" masquerade
    meta mark & ` + hairpinMark + ` == ` + hairpinMark + ` ct status dnat masquerade
` + masquerade.String() + `  }
`
}

// widest returns subnets without those that lie in another one: nft takes no set whose elements
// overlap.
func widest(subnets []netip.Prefix) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range subnets {
		covers := func(other netip.Prefix) bool { return other.Bits() <= s.Bits() && other.Overlaps(s) }
		if slices.ContainsFunc(all, covers) {
			continue
		}
		all = slices.DeleteFunc(all, func(other netip.Prefix) bool { return s.Bits() < other.Bits() && s.Overlaps(other) })
		all = append(all, s)
	}
	return all
}

// marker returns the name of an empty chain that identifies the version of the rules.
func (n *Net) marker() string {
	sum := sha256.Sum256([]byte(n.rules()))
	return "rules-" + hex.EncodeToString(sum[:6])
}

// ensureTable writes the table unless it exists in this version.
func (n *Net) ensureTable(ctx context.Context) error {
	if chainExists(n.Name, n.marker()) {
		return nil
	}
	ports, err := n.restoreTable(ctx)
	if err != nil {
		return err
	}
	dropStaleFlows(ctx, ports)
	return nil
}

// restoreTable writes the table unless another process has meanwhile, and returns the elements that
// it has written.
func (n *Net) restoreTable(ctx context.Context) ([]element, error) {
	unlock, err := n.lock(ctx, tableLock)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if chainExists(n.Name, n.marker()) {
		return nil, nil
	}
	return n.writeTable(ctx)
}

// Heal writes the table again if the bridge exists but the table of this version does not: the
// ruleset was flushed, and the pods have neither a way out nor host ports, or the subnets have
// changed. It reports whether there was no table.
func (n *Net) Heal(ctx context.Context) (healed bool, err error) {
	if _, ok := linkIndex(n.Bridge); !ok || chainExists(n.Name, n.marker()) {
		return false, nil
	}
	missing := !chainExists(n.Name, "postrouting")
	return missing, n.ensureTable(ctx)
}

// writeTable replaces the table, including the host ports of all pods, which it returns. nft
// applies its input as one transaction, so the table is never missing.
func (n *Net) writeTable(ctx context.Context) ([]element, error) {
	ports, err := n.allElements()
	if err != nil {
		return nil, err
	}
	return ports, nft(ctx, fmt.Sprintf("table inet %s {}\ndelete table inet %[1]s\ntable inet %[1]s {\n  chain %[2]s {}\n%[3]s}\n%[4]s",
		n.Name, n.marker(), n.rules(), n.commands("add", ports)))
}

// nftLife bounds one run of nft, even for callers without a deadline: nft waits while others
// load large rulesets, which takes seconds at most.
const nftLife = time.Minute

// nft runs commands of nft(8), whose syntax is stable, unlike the netlink messages behind it. If
// nft is killed because ctx ends, the kernel may or may not have executed the commands.
func nft(ctx context.Context, commands string) error {
	ctx, cancel := context.WithTimeout(ctx, nftLife)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(commands)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return Ready()
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return fmt.Errorf("nft was killed: %w", cause)
	}
	if err != nil {
		return fmt.Errorf("nft: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// chainExists reports whether the kernel has a chain in the table of family inet
// (NFT_MSG_GETCHAIN). It takes microseconds, because every ADD calls it.
func chainExists(table, chain string) bool {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.NFPROTO_INET, Version: nl.NFNETLINK_V0})
	req.AddData(nl.NewRtAttr(unix.NFTA_CHAIN_TABLE, nl.ZeroTerminated(table)))
	req.AddData(nl.NewRtAttr(unix.NFTA_CHAIN_NAME, nl.ZeroTerminated(chain)))
	got, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	return err == nil && len(got) > 0
}
