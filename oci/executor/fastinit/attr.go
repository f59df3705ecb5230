package fastinit

import (
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"
)

// A mountAttr is what mount_setattr(2) sets and clears.
type mountAttr struct{ set, clear uint64 }

// plainAttrs are the flags of mount(2) with their attributes.
var plainAttrs = []struct {
	flag int
	attr uint64
}{
	{unix.MS_RDONLY, unix.MOUNT_ATTR_RDONLY}, {unix.MS_NOSUID, unix.MOUNT_ATTR_NOSUID},
	{unix.MS_NODEV, unix.MOUNT_ATTR_NODEV}, {unix.MS_NOEXEC, unix.MOUNT_ATTR_NOEXEC},
	{unix.MS_NODIRATIME, unix.MOUNT_ATTR_NODIRATIME}, {unix.MS_NOSYMFOLLOW, unix.MOUNT_ATTR_NOSYMFOLLOW},
}

const atimeFlags = unix.MS_NOATIME | unix.MS_RELATIME | unix.MS_STRICTATIME

// newAttr converts the flags of a new mount; ok is false if a flag has no attribute.
func newAttr(flags int) (attr uint64, ok bool) {
	for _, a := range plainAttrs {
		if flags&a.flag != 0 {
			attr |= a.attr
			flags &^= a.flag
		}
	}
	switch {
	case flags&unix.MS_STRICTATIME != 0: // wins, as in mount(2)
		attr |= unix.MOUNT_ATTR_STRICTATIME
	case flags&unix.MS_NOATIME != 0:
		attr |= unix.MOUNT_ATTR_NOATIME
	}
	return attr, flags&^atimeFlags == 0
}

// bindAttr returns how a bind mount changes its source's attributes. If it requests any, all
// others are cleared, except those for access times, as with libcontainer.
func bindAttr(m *configs.Mount) (mountAttr, bool) {
	flags := m.Flags &^ (unix.MS_BIND | unix.MS_REC)
	if flags == 0 && m.ClearedFlags == 0 {
		return mountAttr{}, true
	}
	set, ok := newAttr(flags)
	var clear uint64
	for _, a := range plainAttrs {
		if set&a.attr == 0 && (a.flag != unix.MS_NODIRATIME || m.ClearedFlags&a.flag != 0) {
			clear |= a.attr
		}
	}
	if flags&atimeFlags != 0 {
		clear |= unix.MOUNT_ATTR__ATIME
	}
	return mountAttr{set, clear}, ok
}
