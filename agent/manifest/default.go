package manifest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	v1 "k8s.io/api/core/v1"
)

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

func defaultHandlers(c *v1.Container) {
	setDefault(&c.TerminationMessagePath, v1.TerminationMessagePathDefault)
	setDefault(&c.TerminationMessagePolicy, v1.TerminationMessageReadFile)
	for _, p := range []*v1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		if p == nil {
			continue
		}
		setDefault(&p.TimeoutSeconds, 1)
		setDefault(&p.PeriodSeconds, 10)
		setDefault(&p.SuccessThreshold, 1)
		setDefault(&p.FailureThreshold, 3)
		defaultHTTPGet(p.HTTPGet)
		if p.GRPC != nil {
			setPointer(&p.GRPC.Service, "")
		}
	}
	if c.Lifecycle == nil {
		return
	}
	for _, h := range []*v1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
		if h != nil {
			defaultHTTPGet(h.HTTPGet)
		}
	}
}

func defaultHTTPGet(a *v1.HTTPGetAction) {
	if a != nil {
		setDefault(&a.Path, "/")
		setDefault(&a.Scheme, v1.URISchemeHTTP)
	}
}

// defaultResizePolicy allows CPU and memory to change without a restart of the container, unless
// the manifest says otherwise.
func defaultResizePolicy(c *v1.Container) {
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		_, requested := c.Resources.Requests[name]
		_, limited := c.Resources.Limits[name]
		named := slices.ContainsFunc(c.ResizePolicy, func(p v1.ContainerResizePolicy) bool { return p.ResourceName == name })
		if (requested || limited) && !named {
			c.ResizePolicy = append(c.ResizePolicy, v1.ContainerResizePolicy{ResourceName: name, RestartPolicy: v1.NotRequired})
		}
	}
}

// Ephemeral returns the ephemeral containers of a pod after an update to next: the existing ones
// unchanged, and the new ones with defaults and checked. It is an error to remove one, or to change
// its name, command or image; other changes are ignored. Errors are of type Errors, without lines.
func Ephemeral(pod *v1.Pod, next []v1.EphemeralContainer) ([]v1.EphemeralContainer, error) {
	v := &validator{tree: &tree{node: &yaml.Node{Kind: yaml.MappingNode}}, spec: &pod.Spec}
	names := map[string]string{}
	for i := range pod.Spec.InitContainers {
		names[pod.Spec.InitContainers[i].Name] = fmt.Sprintf("spec.initContainers[%d]", i)
	}
	for i := range pod.Spec.Containers {
		names[pod.Spec.Containers[i].Name] = fmt.Sprintf("spec.containers[%d]", i)
	}
	have := pod.Spec.EphemeralContainers
	if len(next) < len(have) {
		v.report("spec.ephemeralContainers", "ephemeral containers cannot be removed")
	}
	var list []v1.EphemeralContainer
	for i := range next {
		e := next[i].DeepCopy()
		field := fmt.Sprintf("spec.ephemeralContainers[%d]", i)
		if i < len(have) {
			if e.Name != have[i].Name || !reflect.DeepEqual(e.Command, have[i].Command) || e.Image != have[i].Image {
				v.report(field, "an ephemeral container cannot be changed")
			}
			names[have[i].Name] = field
			list = append(list, have[i])
			continue
		}
		c := v1.Container(e.EphemeralContainerCommon)
		if len(c.Ports) > 0 || c.LivenessProbe != nil || c.ReadinessProbe != nil || c.StartupProbe != nil || c.Lifecycle != nil || len(c.Resources.Limits)+len(c.Resources.Requests) > 0 {
			v.report(field, "an ephemeral container cannot have ports, probes, lifecycle or resources")
		}
		if target := e.TargetContainerName; target != "" && names[target] == "" {
			v.report(field+".targetContainerName", "the pod has no container %q", target)
		}
		defaultContainer(&pod.Spec, &c)
		v.named(field, &c, names)
		v.values(field, "", reflect.ValueOf(&c))
		e.EphemeralContainerCommon = v1.EphemeralContainerCommon(c)
		list = append(list, *e)
	}
	if len(v.errs) > 0 {
		for i := range v.errs {
			v.errs[i].Line = 0
		}
		return nil, inFile("pod "+pod.Namespace+"/"+pod.Name, v.errs)
	}
	return list, nil
}
