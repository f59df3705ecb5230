package network

import (
	"net"

	"github.com/vishvananda/netlink"

	"github.com/crisp-cri/crisp/network/netns"
)

// InterfaceStats has the counters of one interface since it was made.
type InterfaceStats struct {
	Name                                       string
	RxBytes, RxErrors, TxBytes, TxErrors       uint64
	RxPackets, RxDropped, TxPackets, TxDropped uint64
}

// Stats reads the counters of all interfaces but loopback in the network
// namespace at path ("" means the host's). The error is fault.NotFound if the
// namespace does not exist.
func Stats(path string) ([]InterfaceStats, error) {
	var all []InterfaceStats
	err := netns.Enter(path, func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, link := range links {
			a := link.Attrs()
			if a.Flags&net.FlagLoopback != 0 || a.Statistics == nil {
				continue
			}
			s := a.Statistics
			all = append(all, InterfaceStats{
				Name:    a.Name,
				RxBytes: s.RxBytes, RxErrors: s.RxErrors, RxPackets: s.RxPackets, RxDropped: s.RxDropped,
				TxBytes: s.TxBytes, TxErrors: s.TxErrors, TxPackets: s.TxPackets, TxDropped: s.TxDropped,
			})
		}
		return nil
	})
	return all, err
}
