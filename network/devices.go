package network

import (
	"net"

	"github.com/crisp-cri/crisp/network/netns"
)

// HasDevice reports whether a network namespace has a device of that name; "" is our own.
func HasDevice(netNS, name string) bool {
	return netns.Enter(netNS, func() error {
		_, err := net.InterfaceByName(name)
		return err
	}) == nil
}
