package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/server/spec"
)

// resolveMounts finds the source of each mount, and records the image volumes that it mounts.
func (d *containerDraft) resolveMounts(ctx context.Context) error {
	for i, m := range d.config.Mounts {
		var err error
		r := spec.Mount{Mount: m}
		if m.Image.GetImage() == "" {
			r.Source, err = d.s.hostPath(m)
		} else {
			r.Source, err = d.mountVolume(ctx, i, m)
		}
		if err != nil {
			return err
		}
		if m.Propagation != cri.MountPropagation_PROPAGATION_PRIVATE {
			if r.Shared, r.Slave, err = propagationOf(r.Source); err != nil {
				return err
			}
		}
		d.mounts = append(d.mounts, r)
	}
	return nil
}

// mountVolume mounts the image of the i-th mount and returns the path of the requested sub path
// in it.
func (d *containerDraft) mountVolume(ctx context.Context, i int, m *cri.Mount) (source string, err error) {
	if m.HostPath != "" {
		return "", fault.Invalid.Errorf("mount at %s has both an image and the host path %q", m.ContainerPath, m.HostPath)
	}
	if sub := m.ImageSubPath; sub != "" && !filepath.IsLocal(sub) {
		return "", fault.Invalid.Errorf("mount at %s: image_sub_path %q is absolute, or leads out of the image", m.ContainerPath, sub)
	}
	key := volumeKey(d.cr.id, i)
	id, source, err := d.mountVolumeImage(ctx, key, m)
	if err != nil {
		// The kubelet recognizes this error by its first word.
		return "", fmt.Errorf("%w: mount at %s: %w", crierrors.ErrImageVolumeMountFailed, m.ContainerPath, err)
	}
	d.record.volumes = append(d.record.volumes, key)
	d.record.noteMountImage(i, id)
	return source, nil
}

// hostPath returns the real path of a mount's source. CRI: "If the hostpath is a symbolic link,
// runtimes should follow the symlink and mount the real destination to container."
//
// CRI calls a missing source an error, but pods with an untyped hostPath rely on its creation,
// which every runtime does; Options.RejectMountSources lists the paths for which an
// administrator wants the error.
func (s *Server) hostPath(m *cri.Mount) (string, error) {
	if !filepath.IsAbs(m.HostPath) {
		return "", fault.Invalid.Errorf("mount at %s: host path %q is not absolute", m.ContainerPath, m.HostPath)
	}
	real, err := filepath.EvalSymlinks(m.HostPath)
	if !errors.Is(err, os.ErrNotExist) {
		if err != nil {
			return "", fault.Invalid.Errorf("mount at %s: source %s: %w", m.ContainerPath, m.HostPath, err)
		}
		return real, nil
	}
	if slices.Contains(s.current.Load().RejectMountSources, filepath.Clean(m.HostPath)) {
		return "", fault.Invalid.Errorf("mount at %s: source %s does not exist", m.ContainerPath, m.HostPath)
	}
	if err := makeDir(m.HostPath); err != nil {
		return "", fmt.Errorf("mount at %s: source %s does not exist: %w", m.ContainerPath, m.HostPath, err)
	}
	return filepath.EvalSymlinks(m.HostPath)
}

// mountVolumeImage mounts the image of a mount and returns its ID and the path of the requested
// sub path.
func (d *containerDraft) mountVolumeImage(ctx context.Context, key string, m *cri.Mount) (id, source string, err error) {
	img, err := d.s.images.Get(m.Image.Image)
	if err != nil {
		return "", "", err
	}
	if err := d.s.allowImage(ctx, d.sb, m.Image, img); err != nil {
		return "", "", err
	}
	dir, err := d.s.mountImage(ctx, d.sb, key, img.ID, true, d.labels.Mount)
	if err != nil {
		return "", "", err
	}
	d.undo.Add("image volume", d.s.unmount(ctx, key))
	if m.ImageSubPath == "" {
		return img.ID, dir, nil
	}
	// The mount is read-only, so what the path resolves to inside it cannot
	// change.
	handle, err := pathrs.OpenInRoot(dir, m.ImageSubPath)
	if err != nil {
		return "", "", fault.Invalid.Errorf("sub path %q of image %s: %w", m.ImageSubPath, m.Image.Image, err)
	}
	defer handle.Close()
	source, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", handle.Fd()))
	return img.ID, source, err
}

// propagationOf returns how the mount that contains path propagates
// (proc_pid_mountinfo(5), the optional fields).
func propagationOf(path string) (shared, slave bool, err error) {
	on, err := kernel.MountOn(path)
	if err != nil {
		return false, false, err
	}
	if on == nil {
		return false, false, fault.Internal.Errorf("no mount of %s found", path)
	}
	return kernel.IsShared(on), kernel.IsSlave(on), nil
}

// volumeKey names the i-th image mount of a container in the image store.
func volumeKey(id string, i int) string { return id + "-" + strconv.Itoa(i) }
