package kernel

import (
	"fmt"

	"github.com/moby/sys/mountinfo"
)

// MountOn returns the mount that path, which has no symbolic links in it, is on; nil if that is none
// that we see, as in a chroot. Of mounts on the same point the last one is on top; a mount that is
// hidden by a later one above its point is taken for one that can be seen.
func MountOn(path string) (*mountinfo.Info, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	var on *mountinfo.Info
	for _, m := range mounts {
		if on == nil || len(m.Mountpoint) >= len(on.Mountpoint) {
			on = m
		}
	}
	return on, nil
}
