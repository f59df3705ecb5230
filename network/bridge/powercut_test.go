package bridge

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/crisp-cri/crisp/test/powercut"
)

// allocated returns the owners of addresses, according to the disk.
func (n *Net) allocated() (map[netip.Addr]string, error) {
	entries, err := os.ReadDir(n.dir())
	if os.IsNotExist(err) {
		return nil, nil
	}
	all := map[netip.Addr]string{}
	for _, e := range entries {
		if addr, err := netip.ParseAddr(e.Name()); err == nil {
			if all[addr], err = n.owner(addr); err != nil {
				return nil, err
			}
		}
	}
	return all, err
}

// lookAfter returns what is wrong with the addresses after a node has started with this directory
// and the sandboxes keep: an address has one owner, which can release it, and none is lost.
func (n *Net) lookAfter(ctx context.Context, keep []string) error {
	if err := n.Sweep(ctx, keep); err != nil {
		return err
	}
	before, err := n.allocated()
	if err != nil {
		return err
	}
	owners := map[netip.Addr]string{}
	for addr, id := range before {
		if !slices.Contains(keep, id) {
			return fmt.Errorf("%v is %q's still, whom nobody knows", addr, id)
		}
		owners[addr] = id
	}
	free := 5 - len(before) // of a /29, without network, gateway and broadcast
	for i := range free {
		id := fmt.Sprint("new-", i)
		addrs, err := n.allocate(ctx, id, "eth0")
		if err != nil {
			return fmt.Errorf("of %d addresses the %dth: %w", free, i+1, err)
		}
		for _, addr := range addrs {
			if other, taken := owners[addr]; taken {
				return fmt.Errorf("%v is %s's and %s's", addr, other, id)
			}
			owners[addr] = id
		}
	}
	after, err := n.allocated()
	if err != nil {
		return err
	}
	for addr, id := range owners {
		if after[addr] != id {
			return fmt.Errorf("%v was given to %s and is %q's", addr, id, after[addr])
		}
		if err := n.release(ctx, id, []netip.Addr{addr}); err != nil {
			return err
		}
	}
	if left, err := n.allocated(); err != nil || len(left) > 0 {
		return fmt.Errorf("%v are left, %v", left, err)
	}
	return nil
}

// Addresses are not synced, because a power cut also ends their pods. With any remains of the
// files, no address is allocated twice, and none is lost.
func TestPowerCutAddresses(t *testing.T) {
	netAt := func(dir string) *Net {
		return &Net{Name: "net", Bridge: "crisp-no-such", DataDir: filepath.Join(dir, "data"), Subnets: prefixes("10.1.0.0/29")}
	}
	powercut.Case{
		Name: "addresses",
		Run: func(dir string, safe func(string)) {
			n := netAt(dir)
			for _, id := range []string{"pod-a", "pod-b", "pod-c"} {
				safe(id) // its record, which is in another directory
				if _, err := n.allocate(t.Context(), id, "eth0"); err != nil {
					t.Error(err)
				}
			}
			if err := n.release(t.Context(), "pod-b", addresses("10.1.0.3")); err != nil {
				t.Error(err)
			}
			safe("pod-d")
			if _, err := n.allocate(t.Context(), "pod-d", "eth0"); err != nil {
				t.Error(err)
			}
		},
		Check: func(dir string, safe []string) error {
			return netAt(dir).lookAfter(t.Context(), safe)
		},
	}.Test(t)
}

// A daemon that is killed while it allocates an address does not affect the next pod: the leftover
// file must not change the owner of that one's address.
func TestKilledWhileAllocating(t *testing.T) {
	n := &Net{Name: "net", Bridge: "crisp-no-such", DataDir: t.TempDir(), Subnets: prefixes("10.1.0.0/29")}
	if err := os.MkdirAll(n.dir(), 0o755); err != nil {
		t.Fatal(err)
	}
	// The state between the link that allocates the address and the end of allocate.
	owner := filepath.Join(n.dir(), ".owner.tmp")
	if err := os.WriteFile(owner, []byte(strings.Join([]string{"killed", "eth0"}, eol)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(owner, filepath.Join(n.dir(), "10.1.0.2")); err != nil {
		t.Fatal(err)
	}
	if err := n.lookAfter(t.Context(), []string{"killed"}); err != nil {
		t.Error(err)
	}
}
