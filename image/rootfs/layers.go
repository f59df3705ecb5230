package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/image/erofs"
	"github.com/crisp-cri/crisp/image/layer"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// A layer that is an EROFS file system is mounted once for all root file systems, because the
// page cache belongs to the mount. It is mounted from the first mount with a lease of the layer
// until the last such lease is gone, at
//
//	<state>/.layers/<diff ID>
//
// and kept for a while after that without a mount point, see idleLayer.
const layersDir = ".layers"

func (ls *Store) layerMount(id digest.Digest) string {
	return filepath.Join(ls.state, layersDir, id.Encoded())
}

// lower returns the directory with the files of l. The caller has a lease of l.
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
	if ls.takeIdle(l.DiffID, target) {
		return target, nil
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

// labelOf returns the SELinux label of the file at path, for the files in it: the same that they
// would have in a directory there. "" = the host has no labels, or SELinux is off: labels may be
// left that the kernel ignores.
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

// dropLayers unmounts those of the layers that have no lease any more.
func (ls *Store) dropLayers(layers []*layer.Layer) error {
	var errs []error
	for _, l := range layers {
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
		return nil // a later lease mounts it again
	}
	target := ls.layerMount(id)
	ls.keepIdle(id, target)
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

// An idle layer has no lease, but its file system is kept for a while, mounted nowhere:
// otherwise its page cache would be lost, and a container started again would have to read its
// files from disk.
type idleLayer struct {
	mount int // descriptor
	timer *time.Timer
}

const (
	idleFor = 10 * time.Second
	maxIdle = 64
)

// keepIdle keeps the file system of a layer that is about to be unmounted. Failure costs only
// time. The caller has locked mounting.
func (ls *Store) keepIdle(id digest.Digest, target string) {
	if is, err := isMountPoint(target); !is || err != nil || len(ls.idle) >= maxIdle || ls.life.Err() != nil {
		return
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, target, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return
	}
	l := &idleLayer{mount: fd}
	l.timer = time.AfterFunc(idleFor, func() {
		ls.mounting.Lock()
		defer ls.mounting.Unlock()
		if ls.idle[id] == l {
			ls.endIdle(id)
		}
	})
	ls.idle[id] = l
}

// takeIdle mounts a layer that was idle, and reports whether it was. The caller has locked
// mounting.
func (ls *Store) takeIdle(id digest.Digest, target string) bool {
	l, ok := ls.idle[id]
	if !ok {
		return false
	}
	defer ls.endIdle(id)
	return unix.MoveMount(l.mount, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH) == nil
}

// endIdle drops an idle layer. The caller has locked mounting.
func (ls *Store) endIdle(id digest.Digest) {
	l := ls.idle[id]
	l.timer.Stop()
	unix.Close(l.mount)
	delete(ls.idle, id)
}

// EndRemoved drops the idle layers that have been removed: nothing will read them, and only this
// frees their space on disk.
func (ls *Store) EndRemoved() {
	ls.mounting.Lock()
	defer ls.mounting.Unlock()
	for id := range ls.idle {
		if !ls.layers.Has(id) {
			ls.endIdle(id)
		}
	}
}

// leave sets whether l is about to end, so that its layers need not be mounted for it.
func (ls *Store) leave(l *lease, is bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.leaving = is
}

// isLeased reports whether a root file system that will stay has a lease of the layer.
func (ls *Store) isLeased(id digest.Digest) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.m {
		if l.leaving {
			continue
		}
		for _, lower := range l.layers {
			if lower.DiffID == id {
				return true
			}
		}
	}
	return false
}

// sweepLayers unmounts layers without a lease that an earlier daemon, then killed, had mounted.
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
func anyImage(layers *layer.Store, list []*layer.Layer) bool {
	return slices.ContainsFunc(list, func(l *layer.Layer) bool {
		_, isImage := layers.Files(l)
		return isImage
	})
}
