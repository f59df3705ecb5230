package volume

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/internal/kernel"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// share turns the directory of a volume into a shared mount if a container mounts it with a
// mountPropagation. Without systemd / is usually private, so that mounts below the directory
// would reach no container, and runtimes refuse such a mount. Kubelets share all of their
// directory; here each such volume is a mount until the pod is removed.
func (m *Maker) share(pod *v1.Pod, v *v1.Volume) error {
	if plugin(v) == "" || !propagates(&pod.Spec, v.Name) {
		return nil
	}
	path, err := filepath.EvalSymlinks(m.Path(pod, v))
	if err != nil {
		return err
	}
	on, err := kernel.MountOn(path)
	if err != nil || on == nil || kernel.IsShared(on) {
		return err
	}
	if on.Mountpoint != path {
		if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s on itself: %w", path, err)
		}
	}
	if err := unix.Mount("", path, "", unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share the mount %s: %w", path, err)
	}
	return nil
}

// propagates reports whether a container mounts the volume with a mountPropagation.
func propagates(spec *v1.PodSpec, volume string) bool {
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		if slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool {
			return m.Name == volume && ptr.Deref(m.MountPropagation, v1.MountPropagationNone) != v1.MountPropagationNone
		}) {
			return true
		}
	}
	return false
}

// onItself reports whether a mount is a bind mount of a volume's directory on itself.
func (m *Maker) onItself(mount *mountinfo.Info) bool {
	rest, err := filepath.Rel(filepath.Join(m.root, "pods"), mount.Mountpoint) // pods may be on its own file system
	return err == nil && strings.HasSuffix(mount.Root, "/"+rest)
}
