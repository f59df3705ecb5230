package store

import (
	"encoding/json"
	"reflect"

	"github.com/crisp-cri/crisp/agent/manifest"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

func immutable(o manifest.Object) bool {
	switch o := o.(type) {
	case *v1.ConfigMap:
		return o.Immutable != nil && *o.Immutable
	case *v1.Secret:
		return o.Immutable != nil && *o.Immutable
	}
	return false
}

func suspended(o manifest.Object) bool {
	job, ok := o.(*batchv1.Job)
	return ok && job.Spec.Suspend != nil && *job.Spec.Suspend
}

// content is what must not change in an immutable object.
func content(o manifest.Object) any {
	switch o := o.(type) {
	case *v1.ConfigMap:
		return []any{o.Data, o.BinaryData, immutable(o)}
	case *v1.Secret:
		return []any{o.Data, o.Type, immutable(o)}
	}
	return nil
}

// follows reports whether next can be an update of old: for a pod, whether they differ only
// where Kubernetes allows the spec of a running pod to change.
func follows(old, next manifest.Object) bool {
	was, ok := old.(*v1.Pod)
	if !ok {
		return old != nil
	}
	return equality.Semantic.DeepEqual(fixed(&was.Spec), fixed(&next.(*v1.Pod).Spec)) // [] is nil
}

// fixed returns the part of a pod's spec that cannot change, without fields that have no effect here
// and a default in Kubernetes.
func fixed(spec *v1.PodSpec) *v1.PodSpec {
	spec = spec.DeepCopy()
	spec.ActiveDeadlineSeconds, spec.TerminationGracePeriodSeconds, spec.Tolerations, spec.EphemeralContainers = nil, nil, nil, nil
	spec.EnableServiceLinks, spec.SchedulerName, spec.SchedulingGroup = nil, "", nil
	for _, list := range [][]v1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			list[i].Image, list[i].ImagePullPolicy, list[i].Resources = "", "", v1.ResourceRequirements{}
		}
	}
	return spec
}

func equalJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}
