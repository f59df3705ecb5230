package kernel

import (
	"fmt"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// MountOn returns the mount that contains path, which must not have symbolic links; nil if we
// cannot see it, as in a chroot.
func MountOn(path string) (*mountinfo.Info, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	return visible(mounts), nil
}

// visible returns the mount that contains a path, of all those at or above it. The longest mount
// point does not decide: a mount at /a, made after one at /a/b, hides that. So visible goes from
// mount to mount as the kernel does, which at each directory looks for a mount there on the
// current mount. There is at most one: a second mount on the same point is mounted on the first.
func visible(mounts []*mountinfo.Info) (on *mountinfo.Info) {
	listed := make(map[int]bool)
	for _, m := range mounts {
		listed[m.ID] = true
	}
	for {
		var next *mountinfo.Info
		for _, m := range mounts {
			below := on == nil && (!listed[m.Parent] || m.Parent == m.ID)
			if on != nil {
				// A mount on our own root cannot be seen from it (path_resolution(7)).
				below = m.Parent == on.ID && m.ID != on.ID && m.Mountpoint != "/"
			}
			if below && (next == nil || len(m.Mountpoint) < len(next.Mountpoint)) {
				next = m
			}
		}
		if next == nil {
			return on
		}
		on = next
	}
}

// IsShared reports whether mounts below m propagate to its peer group (mount_namespaces(7),
// "Shared subtrees").
func IsShared(m *mountinfo.Info) bool { return PeerGroup(m) != "" }

// IsSlave reports whether mounts below m's master propagate to m. A mount can be shared and
// slave at once.
func IsSlave(m *mountinfo.Info) bool { return MasterGroup(m) != "" }

// PeerGroup returns the ID of m's peer group; "" if it is not shared.
func PeerGroup(m *mountinfo.Info) string { return tag(m, "shared:") }

// MasterGroup returns the ID of the peer group that m is a slave of; "" = none.
func MasterGroup(m *mountinfo.Info) string { return tag(m, "master:") }

// tag returns the value of an optional field of a mount (proc_pid_mountinfo(5)).
func tag(m *mountinfo.Info, name string) string {
	for field := range strings.FieldsSeq(m.Optional) {
		if value, ok := strings.CutPrefix(field, name); ok {
			return value
		}
	}
	return ""
}
