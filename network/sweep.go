package network

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// sweep releases the addresses of pods that are not in keep. host-local has no
// GC of its own (plugins 1.9), and a power cut can take the attachment and leave
// the address.
func (d *defaultNet) sweep(keep []string) error {
	dir := filepath.Join(d.DataDir, d.Name)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// host-local holds this lock while it looks for a free address.
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	for _, e := range entries {
		if _, err := netip.ParseAddr(e.Name()); err != nil {
			continue // lock, last_reserved_ip.<range>
		}
		path := filepath.Join(dir, e.Name())
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		owner, _, _ := strings.Cut(string(data), "\r\n")
		if slices.Contains(keep, owner) {
			continue
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}
