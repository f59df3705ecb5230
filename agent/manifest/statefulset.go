package manifest

import (
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

func completeStatefulSet(v *validator, s *appsv1.StatefulSet, o Options) {
	setPointer(&s.Spec.Replicas, 1)
	setDefault(&s.Spec.PodManagementPolicy, appsv1.OrderedReadyPodManagement)
	if s.Spec.ServiceName != "" { // the subdomain of its pods
		v.valid("spec.serviceName", s.Spec.ServiceName, validation.IsDNS1123Label(s.Spec.ServiceName))
	}
	// A name of a pod becomes its host name.
	v.valid("metadata.name", s.Name, validation.IsDNS1123Label(s.Name+"-"+strconv.Itoa(maxPods)))
	for i := range s.Spec.VolumeClaimTemplates {
		name := s.Spec.VolumeClaimTemplates[i].Name
		// It becomes the name of a volume, and part of a path. A former release has not accepted it.
		if texts := validation.IsDNS1123Label(name); len(texts) > 0 {
			v.insist("spec.volumeClaimTemplates["+strconv.Itoa(i)+"].metadata.name", "%q: %s", name, texts[0])
		}
		volumes := &s.Spec.Template.Spec.Volumes
		*volumes = slices.DeleteFunc(*volumes, func(vol v1.Volume) bool { return vol.Name == name }) // the template prevails
		*volumes = append(*volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name + "-" + s.Name}, // and the pod's number
		}})
	}
	v.template(&s.Spec.Template, s.Namespace, o, v1.RestartPolicyAlways)
	v.selects(s.Spec.Selector, &s.Spec.Template)
}

// ClaimOf returns the claim of this name that a StatefulSet has for one of its pods, nil if it has none.
func ClaimOf(s *appsv1.StatefulSet, name string) *v1.PersistentVolumeClaim {
	for i := range s.Spec.VolumeClaimTemplates {
		t := &s.Spec.VolumeClaimTemplates[i]
		if number, ok := strings.CutPrefix(name, t.Name+"-"+s.Name+"-"); ok {
			if _, err := strconv.ParseUint(number, 10, 31); err == nil {
				claim := t.DeepCopy()
				claim.Name, claim.Namespace = name, s.Namespace
				return claim
			}
		}
	}
	return nil
}
