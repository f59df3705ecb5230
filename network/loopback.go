package network

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/crisp-cri/crisp/network/netns"
)

// loopbackUp does the work of the loopback plugin without a process; the kernel assigns the
// device its addresses.
func loopbackUp(path string) error {
	return netns.Enter(path, func() error {
		// The loopback device is the first in every namespace (LOOPBACK_IFINDEX).
		lo := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: 1}}
		if err := netlink.LinkSetUp(lo); err != nil {
			return fmt.Errorf("bring up the loopback device: %w", err)
		}
		return nil
	})
}
