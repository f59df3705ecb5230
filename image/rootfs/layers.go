package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/crisp-cri/crisp/image/erofs"
	"github.com/crisp-cri/crisp/image/layer"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// A layer that is an EROFS file system is mounted once, for all root file systems: the page cache
// belongs to the mount. It is there from the first mount of one that has a lease of the layer until
// the last such lease is gone, at
//
//	<state>/.layers/<diff ID>
const layersDir = ".layers"

func (ls *Store) layerMount(id digest.Digest) string {
	return filepath.Join(ls.state, layersDir, id.Encoded())
}

// lower returns the directory with the files of l, of which the caller has a lease.
func (ls *Store) lower(l *layer.Layer) (string, error) {
	path, isImage := ls.layers.Files(l)
	if !isImage {
		return path, nil
	}
	ls.mounting.Lock()
	defer ls.mounting.Unlock()
	target := ls.layerMount(l.DiffID)
	if err := os.MkdirAll(target, 0o700); err != nil {
		return "", err
	}
	mounted, err := isMountPoint(target)
	if mounted || err != nil {
		return target, err
	}
	label, err := labelOf(path)
	if err != nil {
		return "", err
	}
	mnt, err := erofs.Mount(path, label)
	if err != nil {
		return "", fmt.Errorf("layer %s: %w", l.DiffID, err)
	}
	defer unix.Close(mnt)
	err = unix.MoveMount(mnt, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
	return target, os.NewSyscallError("move_mount", err)
}

// labelOf returns the SELinux label of the file at path, which the files in it are to have: the
// same that they would have in a directory there. "" = the host has no labels, or SELinux is off,
// which can leave labels behind that the kernel takes no notice of.
func labelOf(path string) (string, error) {
	if !kernel.Probe().SELinux {
		return "", nil
	}
	buf := make([]byte, 4096)
	n, err := unix.Lgetxattr(path, "security.selinux", buf)
	if err == unix.ENODATA || err == unix.ENOTSUP {
		return "", nil
	}
	if err != nil {
		return "", &fs.PathError{Op: "getxattr security.selinux", Path: path, Err: err}
	}
	return unix.ByteSliceToString(buf[:n]), nil
}

// dropLayers unmounts those of the layers of which there is no lease any more.
func (ls *Store) dropLayers(held []*layer.Layer) error {
	var errs []error
	for _, l := range held {
		if _, isImage := ls.layers.Files(l); isImage {
			errs = append(errs, ls.dropLayer(l.DiffID))
		}
	}
	return errors.Join(errs...)
}

func (ls *Store) dropLayer(id digest.Digest) error {
	ls.mounting.Lock()
	defer ls.mounting.Unlock()
	if ls.isLeased(id) {
		return nil // a lease that comes later mounts it again
	}
	target := ls.layerMount(id)
	if err := unmountAll(target); err != nil {
		return fmt.Errorf("unmount layer %s: %w", id, err)
	}
	for _, dir := range []string{target, filepath.Dir(target)} {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return nil
}

// leave tells whether l is about to end, so that its layers need not be mounted for it.
func (ls *Store) leave(l *lease, is bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.leaving = is
}

// isLeased reports whether a root file system that is to stay has a lease of the layer.
func (ls *Store) isLeased(id digest.Digest) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.m {
		if l.leaving {
			continue
		}
		for _, held := range l.held {
			if held.DiffID == id {
				return true
			}
		}
	}
	return false
}

// sweepLayers unmounts the layers that a daemon mounted which was then killed, if there is no lease
// of them.
func (ls *Store) sweepLayers() {
	dirs, err := os.ReadDir(filepath.Join(ls.state, layersDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		ls.log.Error("mounts of layers were not swept", "err", err)
	}
	for _, d := range dirs {
		if err := ls.dropLayer(digest.NewDigestFromEncoded(digest.SHA256, d.Name())); err != nil {
			ls.log.Error("layer without a lease was not unmounted", "layer", d.Name(), "err", err)
		}
	}
}

// anyImage reports whether one of the layers is an EROFS file system.
func anyImage(layers *layer.Store, held []*layer.Layer) bool {
	return slices.ContainsFunc(held, func(l *layer.Layer) bool {
		_, isImage := layers.Files(l)
		return isImage
	})
}
