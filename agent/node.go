package agent

import (
	"net"
	"net/netip"
	"slices"
)

// nodeIPs returns the addresses that this node would send from, IPv4 first.
func nodeIPs() []netip.Addr {
	var ips []netip.Addr
	// Connecting a UDP socket sends nothing: it only asks for the route. The
	// addresses are those reserved for documentation (RFC 5737, RFC 3849).
	for _, target := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		conn, err := net.Dial("udp", target)
		if err != nil {
			continue
		}
		if addr, ok := conn.LocalAddr().(*net.UDPAddr); ok {
			if ip := addr.AddrPort().Addr().Unmap(); ip.IsGlobalUnicast() && !slices.Contains(ips, ip) {
				ips = append(ips, ip)
			}
		}
		conn.Close()
	}
	return ips
}

func texts(ips []netip.Addr) []string {
	out := make([]string, len(ips))
	for i, ip := range ips {
		out[i] = ip.String()
	}
	return out
}
