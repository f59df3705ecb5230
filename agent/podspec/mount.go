package podspec

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

var propagations = map[v1.MountPropagationMode]cri.MountPropagation{
	v1.MountPropagationNone:            cri.MountPropagation_PROPAGATION_PRIVATE,
	v1.MountPropagationHostToContainer: cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
	v1.MountPropagationBidirectional:   cri.MountPropagation_PROPAGATION_BIDIRECTIONAL,
}

// mounts returns the mounts of volumes in the order of the manifest, then /etc/hosts unless
// a volume is mounted there, then the file of the termination message.
func (in *Input) mounts(c *Container) ([]*cri.Mount, error) {
	var mounts []*cri.Mount
	hostsMounted := false
	for i := range c.Spec.VolumeMounts {
		m := &c.Spec.VolumeMounts[i]
		mount, err := in.volumeMount(m, c.Sources[i], c.Env)
		if err != nil {
			return nil, err
		}
		hostsMounted = hostsMounted || m.MountPath == "/etc/hosts"
		mounts = append(mounts, mount)
	}
	if !hostsMounted && c.HostsFile != "" {
		mounts = append(mounts, &cri.Mount{ContainerPath: "/etc/hosts", HostPath: c.HostsFile})
	}
	if c.Spec.TerminationMessagePath == "" {
		return mounts, nil
	}
	return append(mounts, &cri.Mount{ContainerPath: Absolute(c.Spec.TerminationMessagePath), HostPath: c.MessageFile}), nil
}

// Absolute returns a path in a container as an absolute path; a relative path starts at its
// root.
func Absolute(path string) string {
	if !filepath.IsAbs(path) {
		return "/" + path
	}
	return path
}

// volumeMount translates a mount of a container. env is its environment.
func (in *Input) volumeMount(m *v1.VolumeMount, from Source, env []*cri.KeyValue) (*cri.Mount, error) {
	v, err := VolumeOf(in.Pod, m)
	if err != nil {
		return nil, err
	}
	mount := &cri.Mount{ContainerPath: Absolute(m.MountPath), Readonly: m.ReadOnly || from.ReadOnly}
	if m.MountPropagation != nil {
		mount.Propagation = propagations[*m.MountPropagation]
	}
	if v.Image != nil {
		mount.Image = &cri.ImageSpec{Image: from.Image, UserSpecifiedImage: v.Image.Reference, Annotations: in.Pod.Annotations}
		mount.ImageSubPath, err = SubPath(m, env)
		return mount, err
	}
	mount.HostPath = from.Path
	mount.SelinuxRelabel = in.Node.Kernel.SELinux && v.HostPath == nil
	mount.RecursiveReadOnly, err = in.recursive(m, mount.Readonly)
	return mount, err
}

// VolumeOf returns the volume of a pod that a container mounts.
func VolumeOf(pod *v1.Pod, m *v1.VolumeMount) (*v1.Volume, error) {
	i := slices.IndexFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == m.Name })
	if i < 0 {
		return nil, fmt.Errorf("pod %s has no volume %s", podsync.KeyOf(pod), m.Name)
	}
	return &pod.Spec.Volumes[i], nil
}

// SubPath returns the path below its volume that a container mounts, "" for all of the
// volume. env is the container's environment.
func SubPath(m *v1.VolumeMount, env []*cri.KeyValue) (string, error) {
	if m.SubPathExpr == "" {
		return m.SubPath, nil
	}
	path, err := expandPath(m.SubPathExpr, env)
	if err != nil {
		return "", fmt.Errorf("volume %s: %w", m.Name, err)
	}
	return path, nil
}

// expandPath replaces the variables in a subPathExpr. An unknown variable is an error.
func expandPath(expr string, env []*cri.KeyValue) (string, error) {
	var unknown []string
	path := Expand(expr, func(name string) (string, bool) {
		value, ok := lookup(env)(name)
		if !ok {
			unknown = append(unknown, name)
		}
		return value, ok
	})
	if len(unknown) > 0 {
		return "", fmt.Errorf("subPathExpr %q: the container has no variable %s", expr, strings.Join(unknown, ", "))
	}
	if path == "" {
		return "", fmt.Errorf("subPathExpr %q names nothing", expr)
	}
	return path, nil
}

// recursive reports whether a mount must be read-only recursively.
func (in *Input) recursive(m *v1.VolumeMount, readOnly bool) (bool, error) {
	if ptr.Deref(m.RecursiveReadOnly, v1.RecursiveReadOnlyDisabled) == v1.RecursiveReadOnlyDisabled || !readOnly {
		return false, nil
	}
	if !in.RecursiveReadOnly && *m.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled {
		return false, fmt.Errorf("mount %s: the runtime's handler %q has no recursive read-only mounts", m.MountPath, in.Handler)
	}
	return in.RecursiveReadOnly, nil
}
