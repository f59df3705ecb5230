package layer

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/userns"
)

// The names by which a layer marks files of lower layers as deleted (OCI image spec, layer.md).
const (
	whiteoutPrefix = ".wh."         // .wh.x: x is deleted
	whiteoutMeta   = ".wh..wh."     // aufs's own; not files
	whiteoutOpaque = ".wh..wh..opq" // nothing below is visible in this directory
)

// The attributes by which overlayfs marks them. In a user namespace no trusted one can be set: there it
// is mounted with userxattr.
var (
	overlayPrefix = overlayNames(userns.Own()) // refused from a layer
	OverlayOpaque = overlayPrefix + "opaque"
)

func overlayNames(own *userns.Map) string {
	if own != nil {
		return "user.overlay."
	}
	return "trusted.overlay."
}

// OverlayImplied is our own mark of a directory that was created without an entry in the layer, see
// Store.Inherit. Overlayfs shows no container an attribute of this prefix, and copies none up.
var OverlayImplied = overlayPrefix + "crisp.implied"

// setMark sets an attribute of overlayPrefix on base in the directory dir.
func setMark(dir int, base, mark string) error {
	return os.NewSyscallError("setxattr", unix.Lsetxattr(FDPath(dir)+"/"+base, mark, []byte("y"), 0))
}

// hasMark reports whether the open directory fd has an attribute of overlayPrefix.
func hasMark(fd int, mark string) bool {
	var value [1]byte
	n, err := unix.Fgetxattr(fd, mark, value[:])
	return err == nil && string(value[:n]) == "y"
}

// isMeta reports whether an entry is one of the files that aufs kept for itself in its layers.
func isMeta(parent, base string) bool {
	return strings.HasPrefix(base, whiteoutMeta) && base != whiteoutOpaque ||
		strings.HasPrefix(parent, whiteoutMeta) || strings.Contains(parent, "/"+whiteoutMeta)
}

// whiteout creates a whiteout for the name hidden: a character device 0:0. Image spec: "Whiteout
// files MUST only apply to resources in lower/parent layers", so this layer's own file of that
// name stays, whatever the order.
func (u *unpacker) whiteout(dir int, parent, hidden string) error {
	if whiteoutPrefix+hidden == whiteoutOpaque {
		return setMark(dir, ".", OverlayOpaque)
	}
	if hidden == "" || hidden == "." || hidden == ".." {
		return fault.Invalid.Errorf("whiteout of nothing")
	}
	err := unix.Mknodat(dir, hidden, unix.S_IFCHR, 0)
	if err == unix.EEXIST {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, hidden, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return os.NewSyscallError("stat", err)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return setMark(dir, hidden, OverlayOpaque)
		}
		return nil
	}
	if err != nil {
		return u.madeErr(err)
	}
	u.dirs.white[parent+hidden] = true
	return u.dirs.keep(parent + hidden)
}
