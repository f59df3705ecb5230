package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"slices"
	"strconv"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/network/netns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// setSysctls sets the parameters of p's devices, in the order of their names.
func setSysctls(p Pod) error {
	if len(p.Sysctls) == 0 {
		return nil
	}
	return netns.Enter(p.NetNS, func() error {
		for _, path := range slices.Sorted(maps.Keys(p.Sysctls)) {
			value := p.Sysctls[path]
			err := kernel.SetSysctl(path, value)
			if errors.Is(err, fs.ErrNotExist) {
				return fault.Invalid.Errorf("set sysctl %s: the pod has no such device, or the device no such parameter: %w", path, err)
			}
			if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ERANGE) {
				return fault.Invalid.Errorf("set sysctl %s to %q: %w", path, value, err)
			}
			if err != nil {
				return fmt.Errorf("set sysctl %s to %q: %w", path, value, err)
			}
		}
		return nil
	})
}

// loopbackUp does the work of the loopback plugin without a process; the kernel assigns the
// device its addresses.
func loopbackUp(path string) error {
	return netns.Enter(path, func() error {
		// The loopback device is the first in every namespace (LOOPBACK_IFINDEX).
		lo := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: 1}}
		if err := netlink.LinkSetUp(lo); err != nil {
			return fmt.Errorf("bring up the loopback device: %w", err)
		}
		return nil
	})
}

// Dial connects to port of localhost in the network namespace at path ("" means
// the host's): to 127.0.0.1 and, if nothing listens there, to ::1. The
// connection stays in that namespace; the caller may use it anywhere.
func Dial(ctx context.Context, path string, port int32) (net.Conn, error) {
	var conn net.Conn
	err := netns.Enter(path, func() error {
		var d net.Dialer
		var errs []error
		for _, host := range []string{"127.0.0.1", "::1"} {
			c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
			if err == nil {
				conn = c
				return nil
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	return conn, err
}
