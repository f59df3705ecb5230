package noleaks

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
)

// Links that vanish while they are listed do not fail the test: the list is read again.
func TestListThatChangesIsAskedForAgain(t *testing.T) {
	asked := 0
	got, err := whole(func() ([]string, error) {
		if asked++; asked < 3 {
			return nil, netlink.ErrDumpInterrupted
		}
		return []string{"lo"}, nil
	})
	if err != nil || len(got) != 1 || asked != 3 {
		t.Errorf("got %v, %v after %d times", got, err, asked)
	}
	if _, err := whole(func() ([]string, error) { return nil, netlink.ErrDumpInterrupted }); !errors.Is(err, netlink.ErrDumpInterrupted) {
		t.Errorf("a list that always changes: %v", err)
	}
}
