package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/crisp-cri/crisp/image/rootfs"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/crisp-cri/crisp/server/selinux"
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
	d.places = newPlaces(d.root, d.volumes, d.mounts)
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
	key := d.cr.id + "-" + strconv.Itoa(i) // in the image store
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
	dir, err := d.s.mountImage(ctx, d.sb, key, img.ID, rootfs.MountOptions{ReadOnly: true, Label: d.labels.Mount})
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

// mountsFiles reports whether the request mounts nothing but files in place of the sandbox's.
func mountsFiles(mounts []*cri.Mount) bool {
	return !slices.ContainsFunc(mounts, func(m *cri.Mount) bool {
		if !slices.Contains(rootfs.PointFiles(), path.Clean(m.ContainerPath)) {
			return false
		}
		source, err := os.Stat(m.HostPath) // what is missing becomes a directory
		return err != nil || source.IsDir()
	})
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

// makeVolumes creates the directories that the image declares as volumes, unless the request
// mounts something there. They are on disk, writable even if the root file system is not, and
// removed with the container.
func (d *containerDraft) makeVolumes(ctx context.Context) error {
	paths := slices.Collect(maps.Keys(d.image.Config.Config.Volumes))
	if len(paths) == 0 {
		return nil
	}
	want := rootfs.VolumesWanted{
		Paths:    paths,
		Mounted:  rootfs.PointFiles(),
		Reserved: []string{"/dev", "/proc", "/sys"}, // the kernel's, in every container
		IDs:      d.sb.Config().IDs,
	}
	for _, m := range d.config.Mounts {
		want.Mounted = append(want.Mounted, m.ContainerPath)
	}
	made, err := d.s.rootfs.MakeVolumes(ctx, d.cr.id, want)
	if err != nil {
		return fmt.Errorf("volumes of container %s: %w", d.config.Metadata.Name, err)
	}
	for _, v := range made {
		if d.labels.Mount != "" {
			if err := selinux.Relabel(ctx, v.Source, d.labels.Mount, stillWanted(d.sb)); err != nil {
				return fmt.Errorf("volume %s: %w", v.Path, err)
			}
		}
		d.volumes = append(d.volumes, spec.Volume(v))
	}
	return nil
}

// places resolves paths in a container that has not been started yet: over the links of its image
// and of its mounts. What a pod may change there in the meantime does no harm to the host (see
// oci/executor/runtime/share.go).
type places struct {
	root   string            // directory of the root file system
	mounts map[string]string // source by place, absolute and without links; "" = the kernel's, without links
}

// newPlaces sets the places of the mounts, in the order in which they are made: parents first.
func newPlaces(root string, volumes []spec.Volume, mounts []spec.Mount) *places {
	p := &places{root: root, mounts: make(map[string]string)}
	for _, name := range []string{"/proc", "/sys", "/dev"} {
		p.mounts[p.resolve(name)] = ""
	}
	for _, v := range volumes {
		p.mounts[v.Path] = v.Source
	}
	order := make([]*spec.Mount, len(mounts))
	for i := range mounts {
		order[i] = &mounts[i]
	}
	slices.SortStableFunc(order, func(a, b *spec.Mount) int { return depth(a) - depth(b) })
	for _, m := range order {
		m.Place = p.resolve(m.ContainerPath)
		maps.DeleteFunc(p.mounts, func(place, _ string) bool { return strings.HasPrefix(place, m.Place+"/") }) // it hides them
		p.mounts[m.Place] = m.Source
	}
	return p
}

func depth(m *spec.Mount) int { return strings.Count(path.Join("/", m.ContainerPath), "/") }

// maxLinks is how many symlinks the kernel follows in a path (path_resolution(7)).
const maxLinks = 40

// resolve returns where a path leads. Of one that the kernel refuses to follow to its end, it is
// the path itself: nothing can be mounted there.
func (p *places) resolve(name string) string {
	at, rest := "/", strings.Split(name, "/")
	for links := 0; len(rest) > 0; {
		next := path.Join(at, rest[0])
		rest = rest[1:]
		target := ""
		if _, mounted := p.mounts[next]; !mounted {
			target, _ = os.Readlink(p.file(next))
		}
		if target == "" { // it is no link, or missing
			at = next
			continue
		}
		if links++; links > maxLinks {
			return path.Join("/", name)
		}
		if path.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return at
}

// file returns the path on this host of what is at a place; "" = it cannot be a link.
func (p *places) file(place string) string {
	for dir := place; dir != "/"; dir = path.Dir(dir) {
		source, ok := p.mounts[dir]
		switch {
		case ok && source == "":
			return ""
		case ok:
			return filepath.Join(source, strings.TrimPrefix(place, dir))
		}
	}
	return filepath.Join(p.root, place)
}
