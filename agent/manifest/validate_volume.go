package manifest

import (
	"fmt"
	"path"
	"reflect"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
)

func (v *validator) volumes(spec *v1.PodSpec) {
	seen := map[string]bool{}
	for i := range spec.Volumes {
		vol := &spec.Volumes[i]
		field := fmt.Sprintf("spec.volumes[%d]", i)
		v.required(field+".name", vol.Name, validation.IsDNS1123Label)
		if seen[vol.Name] {
			v.report(field+".name", "volume %s is defined twice", vol.Name)
		}
		seen[vol.Name] = true
		sources := volumeSources(vol)
		if len(sources) > 1 {
			v.report(field, "has %d sources: %s", len(sources), strings.Join(sources, ", "))
		}
		v.volume(spec, vol, field)
	}
}

// volumeSources returns the names of the volume's sources, of which it may have one.
func volumeSources(vol *v1.Volume) []string {
	var set []string
	sources := reflect.ValueOf(vol.VolumeSource)
	for i := range sources.NumField() {
		if !sources.Field(i).IsNil() {
			name, _, _ := strings.Cut(sources.Type().Field(i).Tag.Get("json"), ",")
			set = append(set, name)
		}
	}
	return set
}

func (v *validator) volume(spec *v1.PodSpec, vol *v1.Volume, field string) {
	switch {
	case vol.HostPath != nil:
		v.hostPath(field+".hostPath", vol.HostPath)
	case vol.EmptyDir != nil:
		v.emptyDir(field+".emptyDir", vol.EmptyDir)
	case vol.ConfigMap != nil:
		v.ref(field+".configMap", vol.ConfigMap.Name)
		v.items(field+".configMap", vol.ConfigMap.Items, vol.ConfigMap.DefaultMode)
	case vol.Secret != nil:
		v.required(field+".secret.secretName", vol.Secret.SecretName, validation.IsDNS1123Subdomain)
		v.items(field+".secret", vol.Secret.Items, vol.Secret.DefaultMode)
	case vol.DownwardAPI != nil:
		v.downward(spec, field+".downwardAPI", vol.DownwardAPI.Items, vol.DownwardAPI.DefaultMode)
	case vol.Projected != nil:
		v.projected(spec, field+".projected", vol.Projected)
	case vol.Image != nil:
		if vol.Image.Reference == "" {
			v.report(field+".image.reference", "is missing")
		}
		oneOf(v, field+".image.pullPolicy", vol.Image.PullPolicy, v1.PullAlways, v1.PullIfNotPresent, v1.PullNever)
	case vol.PersistentVolumeClaim != nil:
		v.required(field+".persistentVolumeClaim.claimName", vol.PersistentVolumeClaim.ClaimName, validation.IsDNS1123Subdomain)
	}
}

func (v *validator) mode(field string, mode *int32) {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		v.report(field, "%d is not between 0 and 0777 (511)", *mode)
	}
}

// items checks the paths and modes at which a volume shows an object's keys.
func (v *validator) items(field string, items []v1.KeyToPath, def *int32) {
	v.mode(field+".defaultMode", def)
	for i, item := range items {
		field := fmt.Sprintf("%s.items[%d]", field, i)
		v.required(field+".key", item.Key, validation.IsConfigMapKey)
		v.inside(field+".path", item.Path)
		v.mode(field+".mode", item.Mode)
	}
}

// downwardFields are the fields of a pod that the downward API may show in a volume.
var downwardFields = []string{"metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations"}

func (v *validator) downward(spec *v1.PodSpec, field string, items []v1.DownwardAPIVolumeFile, def *int32) {
	v.mode(field+".defaultMode", def)
	for i := range items {
		item := &items[i]
		field := fmt.Sprintf("%s.items[%d]", field, i)
		v.inside(field+".path", item.Path)
		v.mode(field+".mode", item.Mode)
		switch {
		case item.FieldRef != nil && item.ResourceFieldRef != nil:
			v.report(field, "has both fieldRef and resourceFieldRef")
		case item.FieldRef != nil:
			v.fieldRef(item.FieldRef, field+".fieldRef", downwardFields)
		case item.ResourceFieldRef != nil:
			v.resourceFieldRef(spec, nil, item.ResourceFieldRef, field+".resourceFieldRef")
		default:
			v.report(field, "has neither fieldRef nor resourceFieldRef")
		}
	}
}

func (v *validator) projected(spec *v1.PodSpec, field string, p *v1.ProjectedVolumeSource) {
	v.mode(field+".defaultMode", p.DefaultMode)
	paths := map[string]bool{}
	twice := func(field, p string) {
		if paths[p] {
			v.report(field, "%q is the path of two sources", p)
		}
		paths[p] = true
	}
	for i, s := range p.Sources {
		field := fmt.Sprintf("%s.sources[%d]", field, i)
		var items []v1.KeyToPath
		switch {
		case s.ConfigMap != nil:
			field, items = field+".configMap", s.ConfigMap.Items
			v.ref(field, s.ConfigMap.Name)
		case s.Secret != nil:
			field, items = field+".secret", s.Secret.Items
			v.ref(field, s.Secret.Name)
		case s.DownwardAPI != nil:
			field += ".downwardAPI"
			v.downward(spec, field, s.DownwardAPI.Items, nil)
			for j, item := range s.DownwardAPI.Items {
				twice(fmt.Sprintf("%s.items[%d].path", field, j), item.Path)
			}
		}
		v.items(field, items, nil)
		for j, item := range items {
			twice(fmt.Sprintf("%s.items[%d].path", field, j), item.Path)
		}
	}
}

// inside checks a path that must stay inside a volume.
func (v *validator) inside(field, p string) {
	switch {
	case p == "":
		v.report(field, "is missing")
	case path.IsAbs(p):
		v.report(field, "%q: must not begin with /", p)
	case hasDotDot(p):
		v.report(field, "%q: must not contain ..", p)
	case strings.HasPrefix(p, ".."):
		v.report(field, "%q: must not begin with ..", p)
	}
}

func (v *validator) subPath(m *v1.VolumeMount, field string) {
	if m.SubPath != "" && m.SubPathExpr != "" {
		v.report(field+".subPathExpr", "excludes subPath")
	}
	for name, p := range map[string]string{"subPath": m.SubPath, "subPathExpr": m.SubPathExpr} {
		if path.IsAbs(p) {
			v.report(field+"."+name, "%q: must not begin with /", p)
		}
		if hasDotDot(p) {
			v.report(field+"."+name, "%q: must not contain ..", p)
		}
	}
}

func (v *validator) recursiveReadOnly(m *v1.VolumeMount, field string) {
	field += ".recursiveReadOnly"
	oneOf(v, field, *m.RecursiveReadOnly, v1.RecursiveReadOnlyDisabled, v1.RecursiveReadOnlyIfPossible, v1.RecursiveReadOnlyEnabled)
	if *m.RecursiveReadOnly == v1.RecursiveReadOnlyDisabled {
		return
	}
	if !m.ReadOnly {
		v.report(field, "%s needs readOnly", *m.RecursiveReadOnly)
	}
	if ptr.Deref(m.MountPropagation, v1.MountPropagationNone) != v1.MountPropagationNone {
		v.report(field, "%s excludes mountPropagation", *m.RecursiveReadOnly)
	}
}

func (v *validator) hostPath(field string, h *v1.HostPathVolumeSource) {
	if !path.IsAbs(h.Path) {
		v.report(field+".path", "%q is not an absolute path", h.Path)
	}
	if hasDotDot(h.Path) {
		v.report(field+".path", "%q: must not contain ..", h.Path)
	}
	oneOf(v, field+".type", *h.Type, v1.HostPathDirectoryOrCreate, v1.HostPathDirectory, v1.HostPathFileOrCreate,
		v1.HostPathFile, v1.HostPathSocket, v1.HostPathCharDev, v1.HostPathBlockDev)
}

func (v *validator) emptyDir(field string, e *v1.EmptyDirVolumeSource) {
	if !strings.HasPrefix(string(e.Medium), string(v1.StorageMediumHugePages)) {
		oneOf(v, field+".medium", e.Medium, v1.StorageMediumDefault, v1.StorageMediumMemory, v1.StorageMediumHugePages)
	}
	if e.SizeLimit != nil && e.SizeLimit.Sign() <= 0 {
		v.report(field+".sizeLimit", "%s is not more than 0", e.SizeLimit)
	}
}
