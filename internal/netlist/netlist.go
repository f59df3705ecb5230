// Package netlist reads the kernel's lists of links, addresses and routes whole.
package netlist

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// tries bounds how often to ask for a list that keeps changing.
const tries = 100

// Whole repeats a dump during which the kernel's list changed (NLM_F_DUMP_INTR): it may lack
// entries, and netlink returns no routes at all then. The error is netlink.ErrDumpInterrupted if the
// list keeps changing.
func Whole[T any](dump func() ([]T, error)) (list []T, err error) {
	for range tries {
		if list, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return list, err
}

// Routes returns the routes of the main table.
func Routes(family int) ([]netlink.Route, error) {
	return Whole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
}
