package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/crisp-cri/crisp/image/layer"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/thread"
	"github.com/crisp-cri/crisp/internal/userns"
	"golang.org/x/sys/unix"
)

// An IDMap shifts the owners of an image's files into a user namespace. No file is changed or
// copied: the layers are mounted with an ID mapping (mount_setattr(2), MOUNT_ATTR_IDMAP), and
// the overlay is made of those mounts, since Linux 5.19. On disk, a file written to such a root
// file system belongs to the writer's ID outside the namespace.
type IDMap struct {
	UserNS string // path of the user namespace
	IDs    userns.Map
}

// CheckIDMap tries a mount with an IDMap on the file systems of the store. The error is the
// reason why it fails.
func (ls *Store) CheckIDMap() (err error) {
	if err := ls.checkReach(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(ls.staging, "idmap-*")
	if err != nil {
		return fmt.Errorf("make staging directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for _, name := range []string{"lower", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	ids := userns.Range{Host: 1 << 16, Length: 1 << 16} // any range will do
	ns, err := userns.Open(userns.Map{UID: ids, GID: ids})
	if err != nil {
		return err
	}
	defer ns.Close()
	o := overlay{
		lower: []string{filepath.Join(dir, "lower")}, empty: ls.empty,
		upper: filepath.Join(dir, "upper"), work: filepath.Join(dir, "work"), userns: ns,
	}
	mnt, err := o.mapped()
	if err != nil {
		return err
	}
	defer unix.Close(mnt)
	var st unix.Stat_t
	if err := unix.Fstatat(mnt, "", &st, unix.AT_EMPTY_PATH); err != nil {
		return os.NewSyscallError("fstatat", err)
	}
	return nil
}

// checkReach checks that users of a user namespace, who have no rights outside, can reach root
// file systems at all.
func (ls *Store) checkReach() error {
	dir, err := filepath.EvalSymlinks(ls.state)
	if err != nil {
		return err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if info.Mode()&0o001 == 0 {
			return fault.WrongState.Errorf("directory %s has mode %#o: users of a user namespace cannot get through it", dir, info.Mode().Perm())
		}
	}
	return nil
}

// shift returns a file's owner outside of the user namespace. An ID that is not mapped becomes
// the namespace's root.
func (m *IDMap) shift(attr layer.RootAttr) layer.RootAttr {
	for _, id := range []struct {
		in *uint32
		by userns.Range
	}{{&attr.UID, m.IDs.UID}, {&attr.GID, m.IDs.GID}} {
		out, ok := id.by.Translate(*id.in)
		if !ok {
			out = id.by.Host
		}
		*id.in = out
	}
	return attr
}

// mountMapped mounts o, with the layers' owners mapped into o.userns, at target.
func (o *overlay) mountMapped(target string) error {
	mnt, err := o.mapped()
	if err != nil {
		return err
	}
	defer unix.Close(mnt)
	err = unix.MoveMount(mnt, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
	return os.NewSyscallError("move_mount", err)
}

// mapped returns o as a detached mount.
//
// Before Linux 6.15 overlayfs accepts only layers mounted in the caller's mount namespace. So
// the mapped layers are mounted in a namespace that ends with the thread, and none of them can
// be left over.
func (o *overlay) mapped() (mnt int, err error) {
	err = thread.Run(func() error {
		mnt, err = o.assemble()
		return err
	})
	return mnt, err
}

// assemble does the work of mapped on the thread of thread.Run.
func (o *overlay) assemble() (mnt int, err error) {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return -1, os.NewSyscallError("unshare", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return -1, os.NewSyscallError("mount", err)
	}
	// On top of everything, so that it hides none of the given paths.
	bench := filepath.Join(o.empty, "bench")
	if err := unix.Mount("bench", o.empty, "tmpfs", 0, "mode=700"); err != nil {
		return -1, os.NewSyscallError("mount", err)
	}
	m := *o
	m.userns, m.lower = nil, nil
	m.empty = filepath.Join(o.empty, "none")
	for _, dir := range []string{bench, m.empty} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return -1, err
		}
	}
	for i, dir := range o.lower {
		place := filepath.Join(o.empty, strconv.Itoa(i))
		if err := os.Mkdir(place, 0o755); err != nil {
			return -1, err
		}
		if err := mapLayer(dir, place, o.userns); err != nil {
			return -1, err
		}
		m.lower = append(m.lower, place)
	}
	if err := m.mount(bench); err != nil {
		return -1, err
	}
	mnt, err = unix.OpenTree(unix.AT_FDCWD, bench, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	return mnt, os.NewSyscallError("open_tree", err)
}

// mapLayer mounts the directory dir at place with its owners mapped into ns.
func mapLayer(dir, place string, ns *os.File) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return &fs.PathError{Op: "open_tree", Path: dir, Err: err}
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("the file system of %s cannot be ID-mapped: %w", dir, os.NewSyscallError("mount_setattr", err))
	}
	err = unix.MoveMount(tree, "", unix.AT_FDCWD, place, unix.MOVE_MOUNT_F_EMPTY_PATH)
	return os.NewSyscallError("move_mount", err)
}
