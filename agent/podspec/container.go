package podspec

import (
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Container translates a container of the pod. It fails if the container's user is, or may be,
// root despite runAsNonRoot, or if the source of a mount is missing.
func (in *Input) Container(c *Container) (*cri.ContainerConfig, error) {
	spec := c.Spec
	if err := verifyNonRoot(in.Pod, spec, c.Image); err != nil {
		return nil, err
	}
	mounts, err := in.mounts(c)
	if err != nil {
		return nil, err
	}
	annotations, err := containerAnnotations(in.Pod, c)
	if err != nil {
		return nil, err
	}
	ns := in.namespaces()
	if c.Target != "" && ns.Pid == cri.NamespaceMode_CONTAINER {
		ns.Pid, ns.TargetId = cri.NamespaceMode_TARGET, c.Target
	}
	security, err := in.securityContext(spec, c.Image, ns)
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		m.UidMappings, m.GidMappings = ns.GetUsernsOptions().GetUids(), ns.GetUsernsOptions().GetGids()
	}
	expand := func(list []string) []string {
		var out []string
		for _, s := range list {
			out = append(out, Expand(s, lookup(c.Env)))
		}
		return out
	}
	config := &cri.ContainerConfig{
		Metadata:    &cri.ContainerMetadata{Name: spec.Name, Attempt: c.Attempt},
		Image:       &cri.ImageSpec{Image: c.ImageRef, UserSpecifiedImage: spec.Image},
		Command:     expand(spec.Command),
		Args:        expand(spec.Args),
		WorkingDir:  spec.WorkingDir,
		Envs:        c.Env,
		Mounts:      mounts,
		Labels:      in.containerLabels(spec),
		Annotations: annotations,
		LogPath:     filepath.Join(spec.Name, strconv.Itoa(int(c.Attempt))+".log"),
		Stdin:       spec.Stdin,
		StdinOnce:   spec.StdinOnce,
		Tty:         spec.TTY,
		Linux: &cri.LinuxContainerConfig{
			Resources:       in.Resources(spec),
			SecurityContext: security,
		},
	}
	if spec.Lifecycle != nil && spec.Lifecycle.StopSignal != nil {
		config.StopSignal = stopSignal(*spec.Lifecycle.StopSignal)
	}
	return config, nil
}

// stopSignal converts the name of a signal. CRI writes SIGRTMINPLUS1 for SIGRTMIN+1.
func stopSignal(s v1.Signal) cri.Signal {
	name := strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(string(s))
	return cri.Signal(cri.Signal_value[name])
}
