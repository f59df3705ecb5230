package layer

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// RootAttr is the owner and mode that a layer wants the root directory to have.
type RootAttr struct {
	Mode     uint32 // permissions with the special bits
	UID, GID uint32
}

// plainRoot is the root directory of a layer that has no entry for it.
var plainRoot = RootAttr{Mode: 0o755}

// Give sets these attributes on the directory dir.
func (r RootAttr) Give(dir string) error {
	if err := os.Lchown(dir, int(r.UID), int(r.GID)); err != nil {
		return err
	}
	return os.NewSyscallError("chmod", unix.Chmod(dir, r.Mode)) // chown(2) clears bits of the mode
}

// RootOf returns the attributes that the root directory of these layers, lowest first, should
// have: those of the highest layer that has an entry for it. Overlayfs itself would use those of
// the highest directory.
func RootOf(layers []*Layer) RootAttr {
	for _, l := range slices.Backward(layers) {
		if r := l.record.Shape.Root; r != nil {
			return *r
		}
	}
	return plainRoot
}

// TopRoot returns the attributes of the root directory of the highest of these layers.
func TopRoot(layers []*Layer) RootAttr {
	if len(layers) == 0 {
		return plainRoot
	}
	return RootOf(layers[len(layers)-1:])
}
