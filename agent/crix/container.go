package crix

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containerConfig translates one container. ips are the sandbox's addresses.
func (d *Driver) containerConfig(pod *v1.Pod, c *v1.Container, a podsync.Action, image *cri.Image, ips []string) (*cri.ContainerConfig, error) {
	if err := verifyNonRoot(pod, c, image); err != nil {
		return nil, err
	}
	env, err := d.environment(pod, c, ips)
	if err != nil {
		return nil, err
	}
	mounts, err := d.mounts(pod, c, ips)
	if err != nil {
		return nil, err
	}
	expand := func(list []string) []string {
		var out []string
		for _, s := range list {
			out = append(out, expandVariables(s, lookup(env)))
		}
		return out
	}
	return &cri.ContainerConfig{
		Metadata:    &cri.ContainerMetadata{Name: c.Name, Attempt: a.Attempt},
		Image:       &cri.ImageSpec{Image: image.GetId(), UserSpecifiedImage: c.Image},
		Command:     expand(c.Command),
		Args:        expand(c.Args),
		WorkingDir:  c.WorkingDir,
		Envs:        env,
		Mounts:      mounts,
		Labels:      d.containerLabels(pod, c),
		Annotations: containerAnnotations(pod, c, a),
		LogPath:     filepath.Join(c.Name, strconv.Itoa(int(a.Attempt))+".log"),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux: &cri.LinuxContainerConfig{
			Resources:       d.resources(pod, c),
			SecurityContext: d.securityContext(pod, c),
		},
	}, nil
}

var propagations = map[v1.MountPropagationMode]cri.MountPropagation{
	v1.MountPropagationNone:            cri.MountPropagation_PROPAGATION_PRIVATE,
	v1.MountPropagationHostToContainer: cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
	v1.MountPropagationBidirectional:   cri.MountPropagation_PROPAGATION_BIDIRECTIONAL,
}

func (d *Driver) mounts(pod *v1.Pod, c *v1.Container, ips []string) ([]*cri.Mount, error) {
	var mounts []*cri.Mount
	hostsMounted := false
	for _, m := range c.VolumeMounts {
		i := slices.IndexFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == m.Name })
		if i < 0 {
			return nil, fmt.Errorf("pod %s has no volume %s", podsync.KeyOf(pod), m.Name)
		}
		mount := &cri.Mount{
			ContainerPath: filepath.Join("/", m.MountPath),
			HostPath:      d.volumePath(pod, &pod.Spec.Volumes[i]),
			Readonly:      m.ReadOnly,
		}
		if m.MountPropagation != nil {
			mount.Propagation = propagations[*m.MountPropagation]
		}
		hostsMounted = hostsMounted || mount.ContainerPath == "/etc/hosts"
		mounts = append(mounts, mount)
	}
	if hostsMounted {
		return mounts, nil
	}
	hosts, err := d.makeHosts(pod, ips)
	if err != nil {
		return nil, err
	}
	if hosts != "" {
		mounts = append(mounts, &cri.Mount{ContainerPath: "/etc/hosts", HostPath: hosts})
	}
	return mounts, nil
}
