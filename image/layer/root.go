package layer

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// RootAttr is how a layer wants the root directory to be.
type RootAttr struct {
	Mode     uint32 // permissions with the special bits
	UID, GID uint32
}

// plainRoot is the root directory of a layer that has no entry for it.
var plainRoot = RootAttr{Mode: 0o755}

// Give makes the directory dir look so.
func (r RootAttr) Give(dir string) error {
	if err := os.Lchown(dir, int(r.UID), int(r.GID)); err != nil {
		return err
	}
	return os.NewSyscallError("chmod", unix.Chmod(dir, r.Mode)) // chown(2) clears bits of the mode
}

// RootOf is how the root directory of these layers, from the lowest, is to look: as
// the highest says that says so. The root of an overlay looks as its highest directory
// does.
func RootOf(held []*Layer) RootAttr {
	for _, l := range slices.Backward(held) {
		if r := l.record.Shape.Root; r != nil {
			return *r
		}
	}
	return plainRoot
}

// TopRoot is how the root directory of the highest of these layers looks.
func TopRoot(held []*Layer) RootAttr {
	if len(held) == 0 {
		return plainRoot
	}
	return RootOf(held[len(held)-1:])
}
