package crix

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var propagations = map[v1.MountPropagationMode]cri.MountPropagation{
	v1.MountPropagationNone:            cri.MountPropagation_PROPAGATION_PRIVATE,
	v1.MountPropagationHostToContainer: cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
	v1.MountPropagationBidirectional:   cri.MountPropagation_PROPAGATION_BIDIRECTIONAL,
}

// mounts are those of the volumes, in the order of the manifest, then /etc/hosts,
// unless a volume is mounted there, then the file for the termination message.
func (d *Driver) mounts(pod *v1.Pod, c *v1.Container, env []*cri.KeyValue, ips []string) ([]*cri.Mount, error) {
	var mounts []*cri.Mount
	hostsMounted := false
	for i := range c.VolumeMounts {
		mount, err := d.volumeMount(pod, c, i, env)
		if err != nil {
			return nil, err
		}
		hostsMounted = hostsMounted || c.VolumeMounts[i].MountPath == "/etc/hosts"
		mounts = append(mounts, mount)
	}
	if !hostsMounted {
		hosts, err := d.makeHosts(pod, ips)
		if err != nil {
			return nil, err
		}
		if hosts != "" {
			mounts = append(mounts, &cri.Mount{ContainerPath: "/etc/hosts", HostPath: hosts})
		}
	}
	if c.TerminationMessagePath == "" {
		return mounts, nil
	}
	file, err := d.makeMessageFile(pod, c)
	if err != nil {
		return nil, err
	}
	return append(mounts, &cri.Mount{ContainerPath: absolute(c.TerminationMessagePath), HostPath: file}), nil
}

func absolute(path string) string {
	if !filepath.IsAbs(path) {
		return "/" + path
	}
	return path
}

// volumeMount translates the mount i of a container. env is its environment.
func (d *Driver) volumeMount(pod *v1.Pod, c *v1.Container, i int, env []*cri.KeyValue) (*cri.Mount, error) {
	m := &c.VolumeMounts[i]
	v := volumeOf(pod, m.Name)
	if v == nil {
		return nil, fmt.Errorf("pod %s has no volume %s", podsync.KeyOf(pod), m.Name)
	}
	path := m.SubPath
	if m.SubPathExpr != "" {
		var err error
		if path, err = expandPath(m.SubPathExpr, env); err != nil {
			return nil, fmt.Errorf("volume %s: %w", m.Name, err)
		}
	}
	mount := &cri.Mount{ContainerPath: absolute(m.MountPath), Readonly: m.ReadOnly || d.volumes.ReadOnly(pod, v)}
	if m.MountPropagation != nil {
		mount.Propagation = propagations[*m.MountPropagation]
	}
	if v.Image != nil {
		mount.Image, mount.ImageSubPath = &cri.ImageSpec{Image: v.Image.Reference, UserSpecifiedImage: v.Image.Reference}, path
		return mount, nil
	}
	mount.HostPath = d.volumes.Path(pod, v)
	mount.SelinuxRelabel = d.node.selinux && v.HostPath == nil
	if path != "" {
		var err error
		if mount.HostPath, err = d.volumes.SubPath(pod, v, path, c.Name, i); err != nil {
			return nil, err
		}
	}
	var err error
	mount.RecursiveReadOnly, err = d.recursive(pod, m, mount.Readonly)
	return mount, err
}

func volumeOf(pod *v1.Pod, name string) *v1.Volume {
	i := slices.IndexFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
	if i < 0 {
		return nil
	}
	return &pod.Spec.Volumes[i]
}

// expandPath replaces the variables in a subPathExpr, all of which must be known.
func expandPath(expr string, env []*cri.KeyValue) (string, error) {
	var unknown []string
	path := expandVariables(expr, func(name string) (string, bool) {
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

// recursive reports whether what is mounted below a mount is to be read-only too.
func (d *Driver) recursive(pod *v1.Pod, m *v1.VolumeMount, readOnly bool) (bool, error) {
	if m.RecursiveReadOnly == nil || *m.RecursiveReadOnly == v1.RecursiveReadOnlyDisabled || !readOnly {
		return false, nil
	}
	handler, err := d.handler(pod)
	if err != nil {
		return false, err
	}
	can := d.Features != nil && d.Features(handler).GetRecursiveReadOnlyMounts()
	if !can && *m.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled {
		return false, fmt.Errorf("mount %s: the runtime's handler %q has no recursive read-only mounts", m.MountPath, handler)
	}
	return can, nil
}
