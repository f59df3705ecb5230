package manifest

import (
	"fmt"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/kubectl/pkg/util/fieldpath"
)

// fieldRefs are the fields of a pod that the downward API may show in a variable.
var fieldRefs = []string{
	"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
	"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
}

func (v *validator) env(spec *v1.PodSpec, c *v1.Container, field string) {
	for i, e := range c.Env {
		field := fmt.Sprintf("%s.env[%d]", field, i)
		v.required(field+".name", e.Name, validation.IsRelaxedEnvVarName)
		if e.ValueFrom == nil {
			continue
		}
		if e.Value != "" {
			v.report(field, "has both value and valueFrom")
		}
		v.valueFrom(spec, c, e.ValueFrom, field+".valueFrom")
	}
	for i, e := range c.EnvFrom {
		field := fmt.Sprintf("%s.envFrom[%d]", field, i)
		if e.Prefix != "" {
			v.valid(field+".prefix", e.Prefix, validation.IsRelaxedEnvVarName(e.Prefix))
		}
		switch {
		case e.ConfigMapRef != nil && e.SecretRef != nil:
			v.report(field, "has two sources")
		case e.ConfigMapRef != nil:
			v.ref(field+".configMapRef", e.ConfigMapRef.Name)
		case e.SecretRef != nil:
			v.ref(field+".secretRef", e.SecretRef.Name)
		default:
			v.report(field, "names no source")
		}
	}
}

func (v *validator) valueFrom(spec *v1.PodSpec, c *v1.Container, from *v1.EnvVarSource, field string) {
	sources := 0
	if ref := from.FieldRef; ref != nil {
		sources++
		v.fieldRef(ref, field+".fieldRef", fieldRefs)
	}
	if ref := from.ResourceFieldRef; ref != nil {
		sources++
		v.resourceFieldRef(spec, c, ref, field+".resourceFieldRef")
	}
	if ref := from.ConfigMapKeyRef; ref != nil {
		sources++
		v.keyRef(field+".configMapKeyRef", ref.Name, ref.Key)
	}
	if ref := from.SecretKeyRef; ref != nil {
		sources++
		v.keyRef(field+".secretKeyRef", ref.Name, ref.Key)
	}
	if ref := from.FileKeyRef; ref != nil {
		sources++
		v.fileKeyRef(spec, ref, field+".fileKeyRef")
	}
	switch {
	case sources == 0:
		v.report(field, "names no source")
	case sources > 1:
		v.report(field, "names %d sources", sources)
	}
}

// fileKeyRef checks a reference to a key in a file of an emptyDir.
func (v *validator) fileKeyRef(spec *v1.PodSpec, ref *v1.FileKeySelector, field string) {
	switch vol := volumeOf(spec, ref.VolumeName); {
	case vol == nil:
		v.report(field+".volumeName", "there is no volume %s", ref.VolumeName)
	case vol.EmptyDir == nil:
		v.report(field+".volumeName", "volume %s is no emptyDir", ref.VolumeName)
	}
	switch {
	case ref.Path == "":
		v.report(field+".path", "is missing")
	case path.IsAbs(ref.Path) || hasDotDot(ref.Path):
		v.report(field+".path", "leads out of the volume")
	}
	if len(ref.Key) > 128 {
		v.report(field+".key", "has more than 128 characters")
	} else {
		v.required(field+".key", ref.Key, validation.IsRelaxedEnvVarName)
	}
}

// ref checks the name of an object in a reference.
func (v *validator) ref(field, name string) {
	v.required(field+".name", name, validation.IsDNS1123Subdomain)
}

func (v *validator) keyRef(field, name, key string) {
	v.ref(field, name)
	v.required(field+".key", key, validation.IsConfigMapKey)
}

// fieldRef checks a reference of the downward API to a field of the pod. want are the
// fields allowed without a subscript.
func (v *validator) fieldRef(ref *v1.ObjectFieldSelector, field string, want []string) {
	if ref.APIVersion != "" && ref.APIVersion != "v1" {
		v.report(field+".apiVersion", "%q: want v1", ref.APIVersion)
	}
	if m, key, ok := fieldpath.SplitMaybeSubscriptedPath(ref.FieldPath); ok && (m == "metadata.labels" || m == "metadata.annotations") {
		v.valid(field+".fieldPath", key, validation.IsQualifiedName(strings.ToLower(key)))
		return
	}
	oneOf(v, field+".fieldPath", ref.FieldPath, want...)
	if ref.FieldPath == "" {
		v.report(field+".fieldPath", "is missing")
	}
}

// resourceFields are the resources that the downward API shows, besides huge pages,
// whose names end in the page size.
var resourceFields = []string{
	"limits.cpu", "limits.memory", "limits.ephemeral-storage", "requests.cpu", "requests.memory", "requests.ephemeral-storage",
}

// resourceFieldRef checks a reference of the downward API to a resource. c is the
// container that is meant if the reference names none; nil in a volume, where the
// reference must name one.
func (v *validator) resourceFieldRef(spec *v1.PodSpec, c *v1.Container, ref *v1.ResourceFieldSelector, field string) {
	list, name, _ := strings.Cut(ref.Resource, ".")
	if !(list == "limits" || list == "requests") || !IsHugePages(v1.ResourceName(name)) {
		oneOf(v, field+".resource", ref.Resource, resourceFields...)
	}
	if ref.Resource == "" {
		v.report(field+".resource", "is missing")
	}
	if ref.Divisor.Sign() < 0 {
		v.report(field+".divisor", "%s is negative", ref.Divisor.String())
	}
	if ref.ContainerName == "" {
		if c == nil {
			v.report(field+".containerName", "is missing")
		}
		return
	}
	named := func(c v1.Container) bool { return c.Name == ref.ContainerName }
	if !slices.ContainsFunc(spec.Containers, named) && !slices.ContainsFunc(spec.InitContainers, named) {
		v.report(field+".containerName", "the pod has no container %q", ref.ContainerName)
	}
}
