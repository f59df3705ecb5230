package image

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// rootAttr is how a layer wants the root directory to be.
type rootAttr struct {
	Mode     uint32 // permissions with the special bits
	UID, GID uint32
}

// plainRoot is the root directory of a layer that has no entry for it.
var plainRoot = rootAttr{Mode: 0o755}

// give makes the directory dir look so.
func (r rootAttr) give(dir string) error {
	if err := os.Lchown(dir, int(r.UID), int(r.GID)); err != nil {
		return err
	}
	return os.NewSyscallError("chmod", unix.Chmod(dir, r.Mode)) // chown(2) clears bits of the mode
}

// rootOf is how the root directory of these layers, from the lowest, is to look: as
// the highest says that says so. The root of an overlay looks as its highest directory
// does.
func rootOf(held []*layer) rootAttr {
	for _, l := range slices.Backward(held) {
		if r := l.record.Shape.Root; r != nil {
			return *r
		}
	}
	return plainRoot
}

// topRoot is how the root directory of the highest of these layers looks.
func topRoot(held []*layer) rootAttr {
	if len(held) == 0 {
		return plainRoot
	}
	return rootOf(held[len(held)-1:])
}
