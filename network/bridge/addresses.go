package bridge

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/crisp-cri/crisp/internal/flock"
)

// A network's directory has the layout of host-local, so that its users know their way around
// and a change of plugin allocates no address twice: a file for each address in use, with the
// content "<id>\r\n<interface>", a file last_reserved_ip.<n> for the nth subnet, and a lock file
// for flock(2). We add the directory ports, and table.lock for whoever runs nft, so that
// allocating an address does not wait for a process.
const (
	eol           = "\r\n"
	addressesLock = "lock"
	tableLock     = "table.lock"
)

// lock creates the directory and acquires one of its locks. ctx can end the wait: the holder of
// the lock may be waiting for nft.
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

// allocate reserves an address of each subnet, in their order. It cycles through each subnet, so
// that a released address is reused as late as possible.
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
	// The file is linked, not written in place, so that it appears with its content.
	owner := filepath.Join(n.dir(), ".owner.tmp")
	// A file left by a killed daemon may already be linked as an address: writing to it would
	// change the owner of that address.
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

// remember writes addr to path. It pads instead of truncating: ext4 flushes a truncated file to
// disk on close (auto_da_alloc).
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

// usable reports whether a pod may have addr: it is not the network's address, the gateway's or,
// for IPv4, the broadcast address.
func usable(addr netip.Addr, subnet netip.Prefix) bool {
	if !addr.IsValid() || !subnet.Contains(addr) || addr == subnet.Addr() || addr == subnet.Addr().Next() {
		return false
	}
	return addr.Is6() || subnet.Contains(addr.Next())
}

// release releases the addresses of id: those in known or, if that is nil, all.
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

// releaseAll releases all addresses whose owner is gone.
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

// owner returns the ID of the pod that has addr.
func (n *Net) owner(addr netip.Addr) (string, error) {
	data, err := os.ReadFile(filepath.Join(n.dir(), addr.String()))
	owner, _, _ := strings.Cut(string(data), eol)
	return owner, err
}

// Uses reports whether a pod has an address of subnet, an earlier one, that is in none of Subnets.
func (n *Net) Uses(subnet netip.Prefix) (bool, error) {
	entries, err := os.ReadDir(n.dir())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		addr, err := netip.ParseAddr(e.Name())
		return err == nil && subnet.Contains(addr) &&
			!slices.ContainsFunc(n.Subnets, func(s netip.Prefix) bool { return s.Contains(addr) })
	}), err
}
