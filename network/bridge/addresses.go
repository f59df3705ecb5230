package bridge

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/crisp-cri/crisp/internal/flock"
)

// The directory of a network is laid out as host-local has it, so that its users
// find their way and a change of plugin hands out no address twice: a file for
// each address that is in use, whose content is "<id>\r\n<interface>", a file
// last_reserved_ip.<n> for the nth subnet, and a file lock for flock(2). Ours are
// the directory ports and table.lock, for what runs nft: addresses do not wait
// for processes.
const (
	eol           = "\r\n"
	addressesLock = "lock"
	tableLock     = "table.lock"
)

// lock makes the directory and returns when the caller alone holds one of its
// locks. It can be given up: who has the lock may wait for nft.
func (n *Net) lock(ctx context.Context, name string) (unlock func(), err error) {
	if err := os.MkdirAll(n.dir(), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(n.dir(), name), os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock.Lock(ctx, f); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return func() { f.Close() }, nil
}

// allocate reserves an address of each subnet, in their order. Addresses are
// handed out in turn, so that one comes back as late as possible.
func (n *Net) allocate(ctx context.Context, id, ifName string) (addrs []netip.Addr, err error) {
	unlock, err := n.lock(ctx, addressesLock)
	if err != nil {
		return nil, err
	}
	defer unlock()
	defer func() {
		if err != nil {
			err = errors.Join(err, n.releaseLocked(id, addrs))
			addrs = nil
		}
	}()
	// The file appears with its content: linked, not written in place.
	owner := filepath.Join(n.dir(), ".owner.tmp")
	// One that a daemon left when it was killed may be an address by now: what is written
	// to it would change whose that is.
	if err := os.Remove(owner); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := os.WriteFile(owner, []byte(id+eol+ifName), 0o600); err != nil {
		return nil, err
	}
	defer os.Remove(owner)
	for i, subnet := range n.Subnets {
		last := filepath.Join(n.dir(), "last_reserved_ip."+strconv.Itoa(i))
		addr, err := n.reserve(subnet, last, owner)
		if err != nil {
			return addrs, err
		}
		addrs = append(addrs, addr)
		if err := remember(last, addr); err != nil {
			return addrs, err
		}
	}
	return addrs, nil
}

// remember writes addr to path. It pads instead of truncating: ext4 writes a file
// that was truncated to the disk when it is closed (auto_da_alloc).
func remember(path string, addr netip.Addr) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%-39s", addr)
	return errors.Join(err, f.Close())
}

// reserve links the file owner to the next free address of subnet.
func (n *Net) reserve(subnet netip.Prefix, last, owner string) (netip.Addr, error) {
	first := subnet.Addr().Next().Next() // after the network's and the gateway's
	start := first
	if data, err := os.ReadFile(last); err == nil {
		if a, err := netip.ParseAddr(strings.TrimSpace(string(data))); err == nil {
			start = a.Next()
		}
	}
	for addr, again := start, false; ; addr = addr.Next() {
		if !usable(addr, subnet) {
			addr = first
		}
		if again && addr == start {
			return netip.Addr{}, fmt.Errorf("no address is free in %v", subnet)
		}
		if !usable(start, subnet) {
			start = first
		}
		again = true
		err := os.Link(owner, filepath.Join(n.dir(), addr.String()))
		if err == nil {
			return addr, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return netip.Addr{}, err
		}
	}
}

// usable says whether a pod may have addr: neither the network's address nor the
// gateway's nor, for IPv4, the broadcast address.
func usable(addr netip.Addr, subnet netip.Prefix) bool {
	if !addr.IsValid() || !subnet.Contains(addr) || addr == subnet.Addr() || addr == subnet.Addr().Next() {
		return false
	}
	return addr.Is6() || subnet.Contains(addr.Next())
}

// release gives back the addresses of id: those that it is known to have, or, with
// none known, whatever it has.
func (n *Net) release(ctx context.Context, id string, known []netip.Addr) error {
	unlock, err := n.lock(ctx, addressesLock)
	if err != nil {
		return err
	}
	defer unlock()
	return n.releaseLocked(id, known)
}

func (n *Net) releaseLocked(id string, known []netip.Addr) error {
	if known != nil {
		for _, addr := range known {
			if err := n.releaseOne(addr, func(owner string) bool { return owner == id }); err != nil {
				return err
			}
		}
		return nil
	}
	return n.releaseAll(func(owner string) bool { return owner == id })
}

// releaseAll gives back all addresses whose owner is not wanted any more.
func (n *Net) releaseAll(gone func(owner string) bool) error {
	entries, err := os.ReadDir(n.dir())
	if err != nil {
		return err
	}
	for _, e := range entries {
		addr, err := netip.ParseAddr(e.Name())
		if err != nil {
			continue // lock, ports, last_reserved_ip.<n>
		}
		if err := n.releaseOne(addr, gone); err != nil {
			return err
		}
	}
	return nil
}

func (n *Net) releaseOne(addr netip.Addr, gone func(owner string) bool) error {
	owner, err := n.owner(addr)
	if err == nil && gone(owner) {
		err = os.Remove(filepath.Join(n.dir(), addr.String()))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// owner returns the ID that has addr.
func (n *Net) owner(addr netip.Addr) (string, error) {
	data, err := os.ReadFile(filepath.Join(n.dir(), addr.String()))
	owner, _, _ := strings.Cut(string(data), eol)
	return owner, err
}
