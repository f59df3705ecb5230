package network

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/crisp-cri/crisp/internal/fault"
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
			f, err := os.OpenFile(filepath.Join("/proc/sys", path), os.O_WRONLY, 0)
			if err == nil {
				_, err = f.WriteString(value)
				err = errors.Join(err, f.Close())
			}
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
