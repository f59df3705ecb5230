package bridge

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// routeTries bounds how often to ask the kernel for routes that keep changing.
const routeTries = 100

// Routes returns the routes of the host's main table. The kernel says of a list that it changed
// while it was being read (NLM_F_DUMP_INTR), and netlink then returns no routes at all; so Routes
// reads it again.
func Routes(family int) ([]netlink.Route, error) {
	return readRoutes(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
}

func readRoutes(read func() ([]netlink.Route, error)) (routes []netlink.Route, err error) {
	for range routeTries {
		if routes, err = read(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return routes, err
}
