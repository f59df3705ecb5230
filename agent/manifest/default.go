package manifest

import (
	"reflect"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// setDefaults sets the defaults that Kubernetes' API server would set.
func setDefaults(pod *v1.Pod, o Options) {
	spec := &pod.Spec
	setDefault(&spec.RestartPolicy, v1.RestartPolicyAlways)
	setDefault(&spec.DNSPolicy, v1.DNSClusterFirst)
	setDefault(&spec.NodeName, o.NodeName)
	setPointer(&spec.TerminationGracePeriodSeconds, int64(v1.DefaultTerminationGracePeriodSeconds))
	if *spec.TerminationGracePeriodSeconds < 0 { // as in an API server
		*spec.TerminationGracePeriodSeconds = 1
	}
	// An API server never leaves it nil.
	setPointer(&spec.SecurityContext, v1.PodSecurityContext{})
	if p, ok := priorities[spec.PriorityClassName]; ok {
		setPointer(&spec.Priority, p)
	}
	for i := range spec.Volumes {
		defaultVolume(&spec.Volumes[i])
	}
	for i := range spec.InitContainers {
		defaultContainer(spec, &spec.InitContainers[i])
	}
	for i := range spec.Containers {
		defaultContainer(spec, &spec.Containers[i])
	}
	defaultPodResources(spec)
}

// priorities has the values of Kubernetes' built-in priority classes.
var priorities = map[string]int32{"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}

func defaultVolume(v *v1.Volume) {
	if v.HostPath != nil {
		setPointer(&v.HostPath.Type, v1.HostPathUnset)
	}
	const mode = v1.ConfigMapVolumeSourceDefaultMode // the same for all kinds of volumes
	switch {
	case v.ConfigMap != nil:
		setPointer(&v.ConfigMap.DefaultMode, mode)
	case v.Secret != nil:
		setPointer(&v.Secret.DefaultMode, mode)
	case v.DownwardAPI != nil:
		setPointer(&v.DownwardAPI.DefaultMode, mode)
		defaultDownward(v.DownwardAPI.Items)
	case v.Projected != nil:
		setPointer(&v.Projected.DefaultMode, mode)
		for _, s := range v.Projected.Sources {
			if s.DownwardAPI != nil {
				defaultDownward(s.DownwardAPI.Items)
			}
		}
	case v.Image != nil:
		setDefault(&v.Image.PullPolicy, pullPolicy(v.Image.Reference))
	}
	if len(set(reflect.ValueOf(v.VolumeSource))) == 0 {
		v.EmptyDir = &v1.EmptyDirVolumeSource{}
	}
}

func defaultDownward(items []v1.DownwardAPIVolumeFile) {
	for i := range items {
		if items[i].FieldRef != nil {
			setDefault(&items[i].FieldRef.APIVersion, "v1")
		}
	}
}

func defaultContainer(spec *v1.PodSpec, c *v1.Container) {
	setDefault(&c.ImagePullPolicy, pullPolicy(c.Image))
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
	defaultHandlers(c)
	for name, limit := range c.Resources.Limits {
		if _, ok := c.Resources.Requests[name]; !ok {
			if c.Resources.Requests == nil {
				c.Resources.Requests = v1.ResourceList{}
			}
			c.Resources.Requests[name] = limit.DeepCopy()
		}
	}
	defaultResizePolicy(c)
}

// pullPolicy returns the default pull policy of an image reference: Always if the tag is
// "latest" or there is neither tag nor digest, else IfNotPresent.
func pullPolicy(ref string) v1.PullPolicy {
	name, _, digested := strings.Cut(ref, "@")
	_, tag, tagged := strings.Cut(name[strings.LastIndex(name, "/")+1:], ":")
	if tag == "latest" || !tagged && !digested {
		return v1.PullAlways
	}
	return v1.PullIfNotPresent
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
