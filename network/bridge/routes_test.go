package bridge

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
)

// Routes that changed while they were being read are not taken for none.
func TestRoutesReadAgain(t *testing.T) {
	reads := 0
	routes, err := readRoutes(func() ([]netlink.Route, error) {
		if reads++; reads < 3 {
			return nil, netlink.ErrDumpInterrupted
		}
		return []netlink.Route{{}}, nil
	})
	if err != nil || len(routes) != 1 {
		t.Errorf("got %v, %v", routes, err)
	}
	_, err = readRoutes(func() ([]netlink.Route, error) { return nil, netlink.ErrDumpInterrupted })
	if !errors.Is(err, netlink.ErrDumpInterrupted) {
		t.Errorf("routes that keep changing: %v", err)
	}
}
