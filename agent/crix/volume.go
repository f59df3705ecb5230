package crix

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/volume"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var propagations = map[v1.MountPropagationMode]cri.MountPropagation{
	v1.MountPropagationNone:            cri.MountPropagation_PROPAGATION_PRIVATE,
	v1.MountPropagationHostToContainer: cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
	v1.MountPropagationBidirectional:   cri.MountPropagation_PROPAGATION_BIDIRECTIONAL,
}

// Volumes makes the volumes of pods.
func (d *Driver) Volumes() *volume.Maker { return d.volumes }

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

// imageVolumes brings the images here that the container mounts, and returns
// what to mount by the names of the volumes.
func (d *Driver) imageVolumes(ctx, interrupt context.Context, pod *v1.Pod, c *v1.Container, sandbox *cri.PodSandboxConfig) (map[string]string, error) {
	refs := map[string]string{}
	for _, m := range c.VolumeMounts {
		v := volumeOf(pod, m.Name)
		if v == nil || v.Image == nil || refs[v.Image.Reference] != "" {
			continue
		}
		ref, _, err := d.ensureImage(ctx, interrupt, pod, &v1.Container{Name: c.Name, Image: v.Image.Reference, ImagePullPolicy: v.Image.PullPolicy}, sandbox)
		if err != nil {
			return nil, err
		}
		refs[v.Image.Reference] = ref
	}
	return refs, nil
}

// shown is what volumes know of a pod. They come before the sandbox, so addresses are
// none of it.
type shown struct{ *Driver }

func (s shown) Field(pod *v1.Pod, path string) (string, error) { return s.fieldValue(pod, path, nil) }

func (s shown) Resource(pod *v1.Pod, ref *v1.ResourceFieldSelector) (string, error) {
	return s.resourceValue(pod, nil, ref)
}

func (s shown) Memory(pod *v1.Pod) int64 {
	most := s.allocatable(v1.ResourceMemory)
	if limit := s.Limits(pod)[v1.ResourceMemory]; Limited(pod, v1.ResourceMemory) && (most.IsZero() || limit.Cmp(most) < 0) {
		most = limit
	}
	return most.Value()
}
