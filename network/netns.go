package network

import (
	"context"
	"net"
)

// Dial connects to port of localhost, tcp4 and then tcp6, in the namespace at
// path netns; "" is the host's.
func Dial(ctx context.Context, netns string, port int32) (net.Conn, error) { return nil, nil }

// InterfaceStats counts what went through one interface since it was made.
type InterfaceStats struct {
	Name                                       string
	RxBytes, RxErrors, TxBytes, TxErrors       uint64
	RxPackets, RxDropped, TxPackets, TxDropped uint64
}

// Stats reads the counters of all interfaces but loopback in the namespace at
// path netns; "" is the host's.
func Stats(netns string) ([]InterfaceStats, error) { return nil, nil }
