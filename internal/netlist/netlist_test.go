package netlist

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
)

// A list that changes while it is read is read again: links vanish, and routes would count as none.
func TestListThatChangesIsAskedForAgain(t *testing.T) {
	asked := 0
	got, err := Whole(func() ([]string, error) {
		if asked++; asked < 3 {
			return nil, netlink.ErrDumpInterrupted
		}
		return []string{"lo"}, nil
	})
	if err != nil || len(got) != 1 || asked != 3 {
		t.Errorf("got %v, %v after %d times", got, err, asked)
	}
	if _, err := Whole(func() ([]string, error) { return nil, netlink.ErrDumpInterrupted }); !errors.Is(err, netlink.ErrDumpInterrupted) {
		t.Errorf("a list that always changes: %v", err)
	}
}
