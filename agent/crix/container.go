package crix

import (
	"path/filepath"
	"strconv"
	"strings"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containerConfig translates one container, to be made from image, whose
// reference is ref. ips are the sandbox's addresses.
func (d *Driver) containerConfig(pod *v1.Pod, c *v1.Container, a podsync.Action, ref string, image *cri.Image, ips []string) (*cri.ContainerConfig, error) {
	if err := verifyNonRoot(pod, c, image); err != nil {
		return nil, err
	}
	env, err := d.environment(pod, c, ips)
	if err != nil {
		return nil, err
	}
	mounts, err := d.mounts(pod, c, env, ips)
	if err != nil {
		return nil, err
	}
	annotations, err := containerAnnotations(pod, c, a)
	if err != nil {
		return nil, err
	}
	ns, err := d.namespaces(pod)
	if err != nil {
		return nil, err
	}
	if a.Target != "" && ns.Pid == cri.NamespaceMode_CONTAINER {
		ns.Pid, ns.TargetId = cri.NamespaceMode_TARGET, a.Target
	}
	security, err := d.securityContext(pod, c, image, ns)
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		m.UidMappings, m.GidMappings = ns.GetUsernsOptions().GetUids(), ns.GetUsernsOptions().GetGids()
	}
	expand := func(list []string) []string {
		var out []string
		for _, s := range list {
			out = append(out, expandVariables(s, lookup(env)))
		}
		return out
	}
	config := &cri.ContainerConfig{
		Metadata:    &cri.ContainerMetadata{Name: c.Name, Attempt: a.Attempt},
		Image:       &cri.ImageSpec{Image: ref, UserSpecifiedImage: c.Image},
		Command:     expand(c.Command),
		Args:        expand(c.Args),
		WorkingDir:  c.WorkingDir,
		Envs:        env,
		Mounts:      mounts,
		Labels:      d.containerLabels(pod, c),
		Annotations: annotations,
		LogPath:     filepath.Join(c.Name, strconv.Itoa(int(a.Attempt))+".log"),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux: &cri.LinuxContainerConfig{
			Resources:       d.resources(pod, c),
			SecurityContext: security,
		},
	}
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		config.StopSignal = stopSignal(*c.Lifecycle.StopSignal)
	}
	return config, nil
}

// stopSignal is CRI's name for a signal: SIGRTMIN+1 is SIGRTMINPLUS1 there.
func stopSignal(s v1.Signal) cri.Signal {
	name := strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(string(s))
	return cri.Signal(cri.Signal_value[name])
}
