package manifest

import (
	"fmt"
	"reflect"

	"go.yaml.in/yaml/v3"
	v1 "k8s.io/api/core/v1"
)

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
