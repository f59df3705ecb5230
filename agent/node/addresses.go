package node

import (
	"bytes"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// addressAge is how long the node's addresses are cached.
const addressAge = 10 * time.Second

// Addresses are the node's addresses: the configured ones, or those that it has now. At boot
// the node may get them after the agent has started, and DHCP may change them. Addresses is
// safe for concurrent use.
type Addresses struct {
	look func() []netip.Addr

	mu    sync.Mutex
	at    time.Time // when they were last determined; guarded by mu
	known []string  // primary first; replaced, never changed; guarded by mu
}

// NewAddresses returns the given addresses or, if given is nil, Addresses that detects them.
func NewAddresses(given []netip.Addr) *Addresses {
	if given != nil {
		return &Addresses{look: func() []netip.Addr { return given }}
	}
	return &Addresses{look: nodeIPs}
}

// Get returns the addresses, primary first; none if the node never had one. If the node has
// lost its addresses, Get returns the last ones. The slice is shared and read-only.
func (a *Addresses) Get() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.known) > 0 && time.Since(a.at) < addressAge {
		return a.known
	}
	a.at = time.Now()
	if ips := a.look(); len(ips) > 0 {
		a.known = texts(ips)
	}
	return a.known
}

// nodeIPs returns the source addresses of the node's default routes, IPv4 first; if there are
// none, those of interfaceIPs.
func nodeIPs() []netip.Addr {
	var ips []netip.Addr
	// Connecting a UDP socket sends nothing; it only looks up the route. The targets are
	// reserved for documentation (RFC 5737, RFC 3849).
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
	if len(ips) == 0 {
		ips = interfaceIPs()
	}
	return ips
}

// interfaceIPs returns the first IPv4 and the first IPv6 address of the interfaces that
// are up, in the kernel's order, IPv4 first. Bridges are left out, since pods are behind them.
func interfaceIPs() []netip.Addr {
	links, err := net.Interfaces()
	if err != nil {
		return nil
	}
	var four, six []netip.Addr
	for _, link := range links {
		if link.Flags&net.FlagUp == 0 || isBridge(link.Name) {
			continue
		}
		list, err := link.Addrs()
		if err != nil {
			continue // the interface is gone
		}
		for _, a := range list {
			prefix, err := netip.ParsePrefix(a.String())
			switch ip := prefix.Addr().Unmap(); {
			case err != nil || !ip.IsGlobalUnicast():
			case ip.Is4():
				four = append(four, ip)
			default:
				six = append(six, ip)
			}
		}
	}
	return slices.Concat(four[:min(len(four), 1)], six[:min(len(six), 1)])
}

// isBridge reports whether an interface is a bridge, by its driver (ETHTOOL_GDRVINFO).
func isBridge(name string) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, name)
	if err != nil {
		return false // loopback has none
	}
	driver, _, _ := bytes.Cut(info.Driver[:], []byte{0})
	return string(driver) == "bridge"
}

func texts(ips []netip.Addr) []string {
	out := make([]string, len(ips))
	for i, ip := range ips {
		out[i] = ip.String()
	}
	return out
}
