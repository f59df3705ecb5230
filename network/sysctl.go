package network

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/network/netns"
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
