package bridge

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"

	"github.com/vishvananda/netlink"
)

// Sweep removes what belongs to none of keep, a list of container IDs: devices, host ports and
// addresses that a power cut or a crash has left without a record. Nothing may be added
// meanwhile.
func (n *Net) Sweep(ctx context.Context, keep []string) error {
	if _, err := os.Stat(n.dir()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	gone := func(owner string) bool { return !slices.Contains(keep, owner) }
	if err := errors.Join(n.sweepLinks(keep), n.sweepPorts(ctx, gone)); err != nil {
		return err
	}
	unlock, err := n.lock(ctx, addressesLock)
	if err != nil {
		return err
	}
	defer unlock()
	return n.releaseAll(gone)
}

// Destroy removes the bridge and the table. The caller must ensure that no pod uses them.
func (n *Net) Destroy(ctx context.Context) error {
	if err := n.sweepLinks(nil); err != nil {
		return err
	}
	if index, ok := linkIndex(n.Bridge); ok {
		if err := DeleteLink(index); err != nil {
			return err
		}
	}
	if !chainExists(n.Name, "postrouting") {
		return nil
	}
	return nft(ctx, "delete table inet "+n.Name+"\n")
}

// vethPattern matches the names that vethName returns, and no port that another program has added
// to the bridge.
var vethPattern = regexp.MustCompile(`^veth[0-9a-f]{11}$`)

// sweepLinks deletes the devices of all but keep.
func (n *Net) sweepLinks(keep []string) error {
	bridge, ok := linkIndex(n.Bridge)
	if !ok {
		return nil
	}
	names := make(map[string]bool)
	for _, id := range keep {
		names[n.vethName(id)] = true
		names[n.ifbName(id)] = true
	}
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list devices: %w", err)
	}
	for _, link := range links {
		a := link.Attrs()
		ours := link.Type() == "veth" && a.MasterIndex == bridge && vethPattern.MatchString(a.Name) ||
			link.Type() == "ifb" && a.Alias == n.Name
		if ours && !names[a.Name] {
			if err := DeleteLink(a.Index); err != nil {
				return err
			}
		}
	}
	return nil
}
