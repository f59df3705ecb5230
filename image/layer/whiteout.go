package layer

import (
	"os"
	"path"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	"golang.org/x/sys/unix"
)

// The names by which a layer marks files of lower layers as deleted (OCI image spec, layer.md),
// and the attributes by which overlayfs marks them.
const (
	whiteoutPrefix = ".wh."             // .wh.x: x is deleted
	whiteoutMeta   = ".wh..wh."         // aufs's own; not files
	whiteoutOpaque = ".wh..wh..opq"     // nothing below is visible in this directory
	overlayPrefix  = "trusted.overlay." // refused from a layer
	OverlayOpaque  = "trusted.overlay.opaque"
)

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
		return u.dirs.hide(dir, ".", path.Clean(parent))
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
			return u.dirs.hide(dir, hidden, parent+hidden)
		}
		return nil
	}
	if err != nil {
		return u.madeErr(err)
	}
	u.dirs.white[parent+hidden] = true
	return u.dirs.keep(parent + hidden)
}

// hide makes the directory base, whose path from the root is name, hide its contents in the
// layers below.
func (d *dirs) hide(dir int, base, name string) error {
	if err := unix.Lsetxattr(FDPath(dir)+"/"+base, OverlayOpaque, []byte("y"), 0); err != nil {
		return os.NewSyscallError("setxattr", err)
	}
	d.opaque = append(d.opaque, name)
	return d.keep(name)
}
