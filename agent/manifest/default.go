package manifest

import (
	"strings"

	v1 "k8s.io/api/core/v1"
)

// setDefaults fills in what Kubernetes' API server would have.
func setDefaults(pod *v1.Pod, o Options) {
	if pod.Namespace == "" {
		pod.Namespace = "default"
	}
	spec := &pod.Spec
	setDefault(&spec.RestartPolicy, v1.RestartPolicyAlways)
	setDefault(&spec.DNSPolicy, v1.DNSClusterFirst)
	setDefault(&spec.NodeName, o.NodeName)
	setPointer(&spec.TerminationGracePeriodSeconds, v1.DefaultTerminationGracePeriodSeconds)
	// Never nil: CRI's zero value for the PID namespace is POD, Kubernetes'
	// default is one for each container, and both follow from this struct.
	setPointer(&spec.SecurityContext, v1.PodSecurityContext{})
	for i := range spec.Volumes {
		defaultVolume(&spec.Volumes[i])
	}
	for i := range spec.InitContainers {
		defaultContainer(spec, &spec.InitContainers[i])
	}
	for i := range spec.Containers {
		defaultContainer(spec, &spec.Containers[i])
	}
}

func defaultVolume(v *v1.Volume) {
	if v.HostPath != nil {
		setPointer(&v.HostPath.Type, v1.HostPathUnset)
	}
	if v.HostPath == nil && v.EmptyDir == nil {
		v.EmptyDir = &v1.EmptyDirVolumeSource{}
	}
}

func defaultContainer(spec *v1.PodSpec, c *v1.Container) {
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = v1.PullIfNotPresent
		if isLatest(c.Image) {
			c.ImagePullPolicy = v1.PullAlways
		}
	}
	for i := range c.Ports {
		p := &c.Ports[i]
		setDefault(&p.Protocol, v1.ProtocolTCP)
		if spec.HostNetwork && p.HostPort == 0 {
			p.HostPort = p.ContainerPort
		}
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil && from.FieldRef != nil {
			setDefault(&from.FieldRef.APIVersion, "v1")
		}
	}
	for name, limit := range c.Resources.Limits {
		if _, ok := c.Resources.Requests[name]; !ok {
			if c.Resources.Requests == nil {
				c.Resources.Requests = v1.ResourceList{}
			}
			c.Resources.Requests[name] = limit.DeepCopy()
		}
	}
}

// isLatest reports whether an image reference names the tag "latest", as one
// without tag and digest does.
func isLatest(ref string) bool {
	if strings.Contains(ref, "@") {
		return false
	}
	name := ref[strings.LastIndex(ref, "/")+1:]
	_, tag, tagged := strings.Cut(name, ":")
	return !tagged || tag == "latest"
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func setPointer[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}
