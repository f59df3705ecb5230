package bridge

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/thread"
	"github.com/crisp-cri/crisp/test/testenv"
)

// A pod gets its default route though the kernel has made none to its subnet.
func TestDefaultRouteWithoutSubnets(t *testing.T) {
	testenv.NeedRoot(t, "it makes a network namespace")
	err := thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		device := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "host"}
		if err := h.LinkAdd(device); err != nil {
			return err
		}
		if err := h.LinkSetUp(device); err != nil {
			return err
		}
		subnet := netip.MustParsePrefix("fd00:1::/64")
		address := &netlink.Addr{IPNet: ipNet(subnet.Addr().Next().Next(), 64), Flags: unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE}
		if err := h.AddrAdd(device, address); err != nil {
			return err
		}
		if err := addDefault(h, device.Attrs().Index, subnet); err != nil {
			return err
		}
		routes, err := h.RouteList(device, netlink.FAMILY_V6)
		found := 0
		for _, r := range routes {
			if r.Gw.String() == "fd00:1::1" || r.Dst.String() == subnet.String() {
				found++
			}
		}
		if found != 2 {
			t.Errorf("the routes are %v, %v", routes, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
