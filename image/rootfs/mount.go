package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/image/layer"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/tree"
	"github.com/crisp-cri/crisp/internal/undo"
)

// MountOptions say how to mount a root file system. The zero value mounts a writable one whose
// files keep the owners and labels of the layers.
type MountOptions struct {
	ReadOnly bool   // nothing can write to it; required for an artifact
	IDs      *IDMap // shifts the owners of files; nil = do not shift
	Label    string // SELinux label of every file, new ones too, by the option context= of mount(8); "" = each keeps its own
	Points   bool   // a writable one has PointFiles, and /dev, /proc and /sys, if the image lacks them; not with IDs
}

// Mount mounts a root file system of the image id for key, as one overlay, and returns its path.
// One that is already mounted is returned as it is. One that was unmounted is mounted again from
// its original layers, with what was written to it. Writes are never synced and do not survive a
// restart of the machine, which ends every container: after it a writable one can only be
// removed. The error is fault.WrongState for that, and if it exists and ReadOnly differs.
func (ls *Store) Mount(_ context.Context, key, id string, o MountOptions) (root string, err error) {
	l, fresh, err := ls.begin(key)
	if err != nil {
		return "", err
	}
	gone := fresh
	defer func() { ls.end(key, gone) }()

	var steps undo.Stack
	defer steps.RunIf(&err)
	if fresh {
		if err := ls.lease(l, key, id, o, &steps); err != nil {
			return "", err
		}
	}
	if l.record.ReadOnly != o.ReadOnly || len(l.layers) != len(l.record.Layers) {
		return "", fault.WrongState.Errorf("root file system %s is of another kind, or has lost its layers", key)
	}
	if ls.isVoid(l.record) {
		return "", fault.WrongState.Errorf("root file system %s dates from before a restart of the machine: it can only be removed", key)
	}
	target := ls.mountPoint(key)
	if err := makeMountPoint(target, o.IDs, &steps); err != nil {
		return "", fmt.Errorf("make mount point: %w", err)
	}
	mounted, err := isMountPoint(target)
	if err != nil {
		return "", err
	}
	if !mounted {
		if !fresh {
			if err := ls.renewWork(key, l); err != nil {
				return "", fmt.Errorf("mount root file system %s: %w", key, err)
			}
		}
		if err := ls.overlay(key, l, o, target); err != nil {
			return "", fmt.Errorf("mount root file system %s: %w", key, err)
		}
	}
	gone = false
	return target, nil
}

// mountPoint returns where the root file system of key is mounted.
func (ls *Store) mountPoint(key string) string { return filepath.Join(ls.state, key, "root") }

// makeMountPoint creates target, in its own directory that keeps the host's other users
// out: files that a container writes may be set-user-ID, devices, or readable by whoever has the
// same IDs on the host. The root of ids' user namespace, which mounts everything else in there
// and has no rights outside, gets access as its group.
func makeMountPoint(target string, ids *IDMap, steps *undo.Stack) error {
	dir := filepath.Dir(target)
	group, mode := -1, fs.FileMode(0o700)
	if ids != nil {
		group, mode = int(ids.IDs.GID.Host), 0o710
	}
	if err := makeDir(dir, 0o700, steps); err != nil {
		return err
	}
	if err := os.Lchown(dir, -1, group); err != nil {
		return err
	}
	if err := os.Chmod(dir, mode); err != nil {
		return err
	}
	return makeDir(target, 0o755, steps)
}

// makeDir creates a directory unless it exists; steps remove it again if it is new.
func makeDir(path string, mode fs.FileMode, steps *undo.Stack) error {
	err := os.Mkdir(path, mode)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		steps.Add("directory "+path, func() error { return os.Remove(path) })
	}
	return err
}

// lease creates a lease of the image id, and its directories.
func (ls *Store) lease(l *lease, key, id string, o MountOptions, steps *undo.Stack) error {
	img, err := ls.image(id)
	if err != nil {
		return err
	}
	if img.Artifact && !o.ReadOnly {
		return fault.Invalid.Errorf("image %s is an artifact: its files can be a volume, but not a root file system", img.ID)
	}
	layers, err := ls.layers.RetainAll(img.Layers)
	if err != nil {
		return err
	}
	steps.Add("layers", func() error {
		ls.set(l, leaseRecord{}, nil)
		return errors.Join(ls.dropLayers(layers), ls.layers.ReleaseAll(layers))
	})
	root := layer.RootOf(layers)
	r := leaseRecord{Image: img.ID, Layers: img.Layers, Inherits: len(img.Dirs) > 0, ReadOnly: o.ReadOnly}
	if o.ReadOnly && root != layer.TopRoot(layers) {
		r.Inherits = true
	}
	if !o.ReadOnly {
		r.Boot = ls.boot
	}
	ls.set(l, r, layers)
	dir := ls.path(key)
	steps.Add("lease", func() error { return os.RemoveAll(dir) })
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make lease: %w", err)
	}
	if err := ls.write(key, r); err != nil {
		return err
	}
	if r.Inherits {
		if err := makeDirs(filepath.Join(dir, "dirs"), root, img.Dirs); err != nil {
			return fmt.Errorf("make directories of image %s: %w", img.ID, err)
		}
	}
	if o.ReadOnly {
		return nil
	}
	upper := filepath.Join(dir, "fs")
	if err := os.Mkdir(upper, 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, "work"), 0o700); err != nil {
		return err
	}
	if o.IDs != nil {
		root = o.IDs.shift(root)
	}
	if err := root.Give(upper); err != nil {
		return err
	}
	ls.refresh(key, l) // still empty
	return nil
}

// renewWork recreates the work directory of l, which is not in use: it may have the mark of a
// volatile mount.
func (ls *Store) renewWork(key string, l *lease) error {
	if l.record.ReadOnly {
		return nil
	}
	work := filepath.Join(ls.path(key), "work")
	if err := tree.Remove(ls.life, work); err != nil {
		return err
	}
	return os.Mkdir(work, 0o700)
}

// maxLower is how many layers the kernel takes below the writable one (OVL_MAX_STACK).
const maxLower = 500

// overlay mounts l at target.
func (ls *Store) overlay(key string, l *lease, options MountOptions, target string) error {
	if _, err := ls.private(); err != nil {
		return fmt.Errorf("keep mounts private: %w", err)
	}
	o := overlay{empty: ls.empty, label: options.Label, numbers: anyImage(ls.layers, l.layers)}
	if l.record.Inherits {
		o.lower = append(o.lower, filepath.Join(ls.path(key), "dirs"))
	}
	for _, lower := range layer.Visible(l.layers) {
		dir, err := ls.lower(lower)
		if err != nil {
			return err
		}
		o.lower = append(o.lower, dir)
	}
	// Its file system need not be one that can be ID-mapped.
	if options.Points && !l.record.ReadOnly && options.IDs == nil && len(o.lower) < maxLower {
		if dir, err := ls.points(); err == nil { // else they are made for each container
			o.lower = append(o.lower, dir)
		}
	}
	if !l.record.ReadOnly {
		o.upper = filepath.Join(ls.path(key), "fs")
		o.work = filepath.Join(ls.path(key), "work")
		o.volatile = true
	}
	if options.IDs != nil {
		ns, err := os.Open(options.IDs.UserNS)
		if err != nil {
			return err
		}
		defer ns.Close()
		o.userns = ns
	}
	return o.mount(target)
}

// Unmount undoes Mount for key; with remove it also deletes what was written and releases the
// layers. It is no error if nothing is mounted, or key does not exist. Processes still in the
// file system keep it alive for themselves.
func (ls *Store) Unmount(ctx context.Context, key string, remove bool) error {
	l, fresh, err := ls.begin(key)
	if err != nil {
		return err
	}
	gone := fresh
	defer func() { ls.end(key, gone) }()
	if err := detach(ls.life, ls.mountPoint(key)); err != nil {
		return fmt.Errorf("unmount root file system %s: %w", key, err)
	}
	if fresh || !remove {
		return nil
	}
	// While the lease still exists: a failure here is retried with it.
	ls.leave(l, true)
	if err := ls.dropLayers(l.layers); err != nil {
		ls.leave(l, false)
		return fmt.Errorf("remove root file system %s: %w", key, err)
	}
	if _, err := ls.layers.Discard(ls.path(key), ls.usage(l)); err != nil {
		ls.leave(l, false)
		return fmt.Errorf("remove root file system %s: %w", key, err)
	}
	gone = true
	layers := l.layers
	ls.set(l, l.record, nil)
	err = ls.layers.ReleaseAll(layers)
	ls.EndRemoved()
	if err != nil {
		return fmt.Errorf("remove layers of root file system %s: %w", key, err)
	}
	return nil
}

// makeDirs creates the directories dirs, parents first, in the new directory dir, whose own
// attributes are root.
func makeDirs(dir string, root layer.RootAttr, dirs []layer.DirAttr) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	fd, err := unix.Open(filepath.Clean(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	for _, d := range dirs {
		if err := unix.Mkdirat(fd, d.Path, 0o700); err != nil {
			return os.NewSyscallError("mkdirat", err)
		}
		if err := unix.Fchownat(fd, d.Path, int(d.UID), int(d.GID), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return os.NewSyscallError("fchownat", err)
		}
		if err := unix.Fchmodat(fd, d.Path, d.Mode, 0); err != nil {
			return os.NewSyscallError("fchmodat", err)
		}
	}
	return root.Give(dir)
}
