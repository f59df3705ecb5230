package node

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/thread"
)

// The node's addresses are its current ones: they may come after boot, and change. Configured
// addresses do not change.
func TestAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var has []netip.Addr
		a := &Addresses{look: func() []netip.Addr { return has }}
		expect := func(want ...string) {
			t.Helper()
			if got := a.Get(); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		}
		expect()
		has = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		expect("192.0.2.1")
		has = []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}
		time.Sleep(addressAge)
		expect("192.0.2.2", "2001:db8::2")
		has = nil // unplugged
		time.Sleep(addressAge)
		expect("192.0.2.2", "2001:db8::2")
		a = NewAddresses([]netip.Addr{netip.MustParseAddr("192.0.2.9")})
		expect("192.0.2.9")
	})
}

// A node has an address even on a network without a default route, and it is not the address of the
// pods' bridge.
func TestNodeIPsWithoutRoute(t *testing.T) {
	refused := thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		try := func(err error) {
			t.Helper()
			if err != nil {
				t.Error(err)
			}
		}
		expect := func(want string) {
			t.Helper()
			if got := strings.Join(texts(nodeIPs()), " "); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		expect("")
		up := func(link netlink.Link, address string) {
			t.Helper()
			try(netlink.LinkAdd(link))
			addr, err := netlink.ParseAddr(address)
			try(err)
			try(netlink.AddrAdd(link, addr))
			try(netlink.LinkSetUp(link))
		}
		up(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "pods0"}}, "10.88.0.1/16")
		expect("")
		up(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lan0"}, PeerName: "lan1"}, "10.1.2.3/24")
		expect("10.1.2.3")
		return nil
	})
	if refused != nil {
		t.Skipf("no network namespace can be made: %v", refused)
	}
}
