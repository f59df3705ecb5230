package bridge

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	vns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Conntrack decides once for each flow where its packets go. It sees no end of a UDP flow: the
// flow stays as long as its client sends, wherever it leads. So flows are dropped when a host
// port leads elsewhere than before.

// A udpPort is a UDP host port, parsed from its element.
type udpPort struct {
	host netip.Addr // invalid: any address of the host
	port uint16
	pod  netip.AddrPort
}

// udpPorts returns the UDP host ports among list.
func udpPorts(list []element) []udpPort {
	var all []udpPort
	for _, e := range list {
		key, value := strings.Split(e.Key, " . "), strings.Split(e.Value, " . ")
		var r udpPort
		var err error
		if len(key) == 3 {
			if r.host, err = netip.ParseAddr(key[0]); err != nil {
				continue
			}
			key = key[1:]
		}
		if len(key) != 2 || key[0] != "udp" || len(value) != 2 {
			continue
		}
		port, err1 := strconv.ParseUint(key[1], 10, 16)
		addr, err2 := netip.ParseAddr(value[0])
		at, err3 := strconv.ParseUint(value[1], 10, 16)
		if errors.Join(err1, err2, err3) != nil {
			continue
		}
		r.port, r.pod = uint16(port), netip.AddrPortFrom(addr, uint16(at))
		all = append(all, r)
	}
	return all
}

// A flow is one UDP entry of conntrack: where its first packet was sent, and which address
// answers.
type flow struct{ to, from netip.AddrPort }

// dropStaleFlows drops the flows to the host ports of list that do not lead to their pods: they
// began while the ports were closed, or another pod's.
func dropStaleFlows(ctx context.Context, list []element) {
	byPort := make(map[uint16][]udpPort)
	for _, r := range udpPorts(list) {
		byPort[r.port] = append(byPort[r.port], r)
	}
	if len(byPort) == 0 {
		return
	}
	local, err := localAddrs()
	if err != nil {
		unsupported(ctx, err)
		return
	}
	dropFlows(ctx, func(f flow) bool {
		for _, r := range byPort[f.to.Port()] {
			mine := r.host == f.to.Addr() || !r.host.IsValid() && (local[f.to.Addr()] || f.to.Addr().IsLoopback())
			if mine && r.pod.Addr().Is4() == f.to.Addr().Is4() && r.pod != f.from {
				return true
			}
		}
		return false
	})
}

// dropFlowsTo drops the flows that the host ports of list have led to their pods, which are going
// away.
func dropFlowsTo(ctx context.Context, list []element) {
	pods := make(map[netip.AddrPort]bool)
	for _, r := range udpPorts(list) {
		pods[r.pod] = true
	}
	if len(pods) == 0 {
		return
	}
	dropFlows(ctx, func(f flow) bool { return pods[f.from] && f.to != f.from })
}

func localAddrs() (map[netip.Addr]bool, error) {
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	local := make(map[netip.Addr]bool)
	for _, a := range addrs {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			local[addr.Unmap()] = true
		}
	}
	return local, nil
}

var sayOnce sync.Once

// unsupported logs once that flows cannot be dropped, for example because the kernel lacks
// nf_conntrack_netlink: some clients then wait longer.
func unsupported(ctx context.Context, err error) {
	sayOnce.Do(func() { slog.WarnContext(ctx, "stale UDP flows to host ports were not dropped", "err", err) })
}

// listFlows lists the UDP flows; a test replaces it.
var listFlows = conntrackFlows

// dropFlows drops the matching flows. It takes time in proportion to the kernel's table, so the
// caller holds no lock.
func dropFlows(ctx context.Context, match func(flow) bool) {
	socket, err := nl.GetNetlinkSocketAt(vns.None(), vns.None(), unix.NETLINK_NETFILTER)
	if err != nil {
		unsupported(ctx, err)
		return
	}
	defer socket.Close()
	// One socket for all: there may be a flow for each client of a DNS server.
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: socket}}
	var doomed [][]byte
	err = listFlows(sockets, func(entry []byte, f flow) {
		if match(f) {
			doomed = append(doomed, bytes.Clone(entry))
		}
	})
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		unsupported(ctx, err)
	}
	for _, entry := range doomed {
		if ctx.Err() != nil {
			return
		}
		req := conntrackRequest(sockets, nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, entry[0])
		req.AddRawData(entry[nl.SizeofNfgenmsg:])
		if _, err := req.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			unsupported(ctx, err)
		}
	}
}

func conntrackRequest(sockets map[int]*nl.SocketHandle, message, flags int, family uint8) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|message, flags)
	req.Sockets = sockets
	req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return req
}

// conntrackFlows passes each UDP flow with its entry to f, one at a time, however many there
// are. An entry begins with struct nfgenmsg, whose first byte is the family.
func conntrackFlows(sockets map[int]*nl.SocketHandle, f func(entry []byte, f flow)) error {
	req := conntrackRequest(sockets, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, unix.AF_UNSPEC)
	return req.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(entry []byte) bool {
		if flow, ok := parseFlow(entry); ok {
			f(entry, flow)
		}
		return true
	})
}

// parseFlow returns false for an entry that is not UDP.
func parseFlow(entry []byte) (f flow, ok bool) {
	if len(entry) < nl.SizeofNfgenmsg {
		return flow{}, false
	}
	attrs := attributes(entry[nl.SizeofNfgenmsg:])
	_, to, ok1 := parseTuple(attrs[nl.CTA_TUPLE_ORIG])
	from, _, ok2 := parseTuple(attrs[nl.CTA_TUPLE_REPLY])
	return flow{to: to, from: from}, ok1 && ok2
}

// parseTuple returns source and destination of a UDP tuple.
func parseTuple(data []byte) (from, to netip.AddrPort, ok bool) {
	tuple := attributes(data)
	ip, proto := attributes(tuple[nl.CTA_TUPLE_IP]), attributes(tuple[nl.CTA_TUPLE_PROTO])
	if num := proto[nl.CTA_PROTO_NUM]; len(num) != 1 || num[0] != unix.IPPROTO_UDP {
		return from, to, false
	}
	end := func(v4, v6, port uint16) (netip.AddrPort, bool) {
		data := ip[v4]
		if data == nil {
			data = ip[v6]
		}
		addr, ok := netip.AddrFromSlice(data)
		if !ok || len(proto[port]) != 2 {
			return netip.AddrPort{}, false
		}
		return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(proto[port])), true
	}
	from, ok1 := end(nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC, nl.CTA_PROTO_SRC_PORT)
	to, ok2 := end(nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST, nl.CTA_PROTO_DST_PORT)
	return from, to, ok1 && ok2
}

// attributes returns the netlink attributes in data by their types.
func attributes(data []byte) map[uint16][]byte {
	attrs, err := nl.ParseRouteAttr(data)
	if err != nil {
		return nil
	}
	all := make(map[uint16][]byte, len(attrs))
	for _, a := range attrs {
		all[a.Attr.Type&nl.NLA_TYPE_MASK] = a.Value
	}
	return all
}
