package rootfs

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/crisp-cri/crisp/image/layer"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/tree"
	"golang.org/x/sys/unix"
)

// A diff has a container's changes in its root file system: files that it wrote, as a tar
// stream, and paths that it removed. As in checkpoints, it has no whiteouts.

// Diff writes the changes in the root file system of key as a tar stream, with everything in its
// volumes, and returns the paths that were removed, absolute and sorted. Nothing may write to it
// meanwhile. Sockets are left out: the programs that listen on them create them again.
func (ls *Store) Diff(ctx context.Context, key string, w io.Writer) (deleted []string, err error) {
	l, fresh, err := ls.begin(key)
	if err != nil {
		return nil, err
	}
	defer func() { ls.end(key, fresh) }()
	if fresh || l.record.ReadOnly {
		return nil, fault.NotFound.Errorf("no writable root file system %q", key)
	}
	if ls.isVoid(l.record) {
		return nil, fault.WrongState.Errorf("root file system %s dates from before a restart of the machine: data written to it may be lost", key)
	}
	d := &differ{
		ctx: ctx, tar: tar.NewWriter(w), links: make(map[uint64]string),
		upper:  filepath.Join(ls.path(key), "fs"),
		merged: ls.mountPoint(key),
	}
	for _, lower := range layer.Visible(l.layers) {
		dir, err := ls.lower(lower)
		if err != nil {
			return nil, err
		}
		d.lower = append(d.lower, dir)
	}
	if err := tree.Walk(ctx, d.upper, tree.Options{Sorted: true}, d.visit); err != nil {
		return nil, fmt.Errorf("changes of root file system %s: %w", key, err)
	}
	for i, at := range l.record.Volumes {
		if err := d.volume(ls.volume(key, i), at); err != nil {
			return nil, fmt.Errorf("volume %s of root file system %s: %w", at, key, err)
		}
	}
	slices.Sort(d.deleted)
	return slices.Compact(d.deleted), d.tar.Close()
}

type differ struct {
	ctx           context.Context
	tar           *tar.Writer
	upper, merged string
	lower         []string
	links         map[uint64]string // inode in upper → its first name
	deleted       []string
}

// visit handles one file of the upper directory.
func (d *differ) visit(f *tree.File) error {
	name, err := nameOf(f)
	if err != nil {
		return err
	}
	file := filePath(f, d.upper)
	if f.Stat.Mode&unix.S_IFMT == unix.S_IFCHR && f.Stat.Rdev == 0 {
		d.deleted = append(d.deleted, "/"+name)
		return nil
	}
	if f.IsDir() && name != "" {
		if has(file, "trusted.overlay.redirect") {
			// A renamed directory: its files are in a lower layer under another name, and their inode
			// numbers are not those of upper.
			if err := d.tree(filepath.Join(d.merged, name), name, true); err != nil {
				return err
			}
			return fs.SkipDir
		}
		if has(file, layer.OverlayOpaque) {
			if err := d.hidden(name, f.FD); err != nil {
				return err
			}
		}
	}
	return d.add(file, name, &f.Stat)
}

// nameOf returns the path of f in the root file system. A path longer than a layer may have
// could not be unpacked.
func nameOf(f *tree.File) (string, error) {
	if f.PathLen() > layer.MaxPath {
		return "", fault.Invalid.Errorf("a path of %d bytes is too long for an archive", f.PathLen())
	}
	return f.Path(), nil
}

// filePath returns a path of f for system calls that take no descriptor.
func filePath(f *tree.File, top string) string {
	if f.IsTop() {
		return top
	}
	return layer.FDPath(f.Dir) + "/" + f.Name
}

// hidden records as removed what the layers have in the directory name and the
// container does not see: it removed the directory and made a new one, which upper is.
func (d *differ) hidden(name string, upper int) error {
	for _, lower := range d.lower {
		names, err := namesIn(lower, name)
		if err != nil {
			return err
		}
		for _, base := range names {
			var st unix.Stat_t
			if unix.Fstatat(upper, base, &st, unix.AT_SYMLINK_NOFOLLOW) == unix.ENOENT {
				d.deleted = append(d.deleted, path.Join("/", name, base))
			}
		}
	}
	return nil
}

// namesIn lists the directory name of the layer at dir, if the layer has one. Like overlayfs, it
// follows no symlinks in the layer.
func namesIn(dir, name string) ([]string, error) {
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP:
		return nil, nil
	default:
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(dir, name), Err: err}
	}
	f := os.NewFile(uintptr(fd), filepath.Join(dir, name))
	defer f.Close()
	return f.Readdirnames(-1)
}

// add writes the entry of one file.
func (d *differ) add(file, name string, st *unix.Stat_t) error {
	hdr, err := layer.Header(file, name, st)
	if hdr == nil || err != nil {
		return err
	}
	if hdr.Typeflag != tar.TypeDir && st.Nlink > 1 {
		if first, ok := d.links[st.Ino]; ok {
			hdr.Typeflag, hdr.Linkname, hdr.Size = tar.TypeLink, first, 0
			return d.tar.WriteHeader(hdr)
		}
		d.links[st.Ino] = name
	}
	if hdr.Typeflag != tar.TypeReg {
		return d.tar.WriteHeader(hdr)
	}
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: file, Err: err}
	}
	f := os.NewFile(uintptr(fd), file)
	defer f.Close()
	if err := d.tar.WriteHeader(hdr); err != nil {
		return err
	}
	_, err = io.CopyN(d.tar, f, hdr.Size)
	return err
}

func has(file, attribute string) bool {
	_, err := unix.Lgetxattr(file, attribute, nil)
	return err == nil
}

// Apply applies a diff to the mounted root file system of key, in which nothing may run yet. The
// diff is as untrusted as a layer: fault.Invalid blames it.
func (ls *Store) Apply(ctx context.Context, key string, r io.Reader, deleted []string) error {
	l, fresh, err := ls.begin(key)
	if err != nil {
		return err
	}
	defer func() { ls.end(key, fresh) }()
	if fresh || l.record.ReadOnly {
		return fault.NotFound.Errorf("no writable root file system %q", key)
	}
	root := ls.mountPoint(key)
	if err := layer.ApplyChanges(ctx, root, r, deleted); err != nil {
		return fmt.Errorf("change root file system %s: %w", key, err)
	}
	return nil
}
