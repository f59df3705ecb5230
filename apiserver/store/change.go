package store

import (
	"encoding/json"
	"reflect"
	"slices"

	"github.com/crisp-cri/crisp/agent/manifest"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubectl/pkg/util/qos"
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

// content returns what cannot change in an immutable object.
func content(o manifest.Object) any {
	switch o := o.(type) {
	case *v1.ConfigMap:
		return []any{o.Data, o.BinaryData, immutable(o)}
	case *v1.Secret:
		return []any{o.Data, o.Type, immutable(o)}
	}
	return nil
}

// follows reports whether next can be an update of old. Two versions of a pod may differ only in
// fields of the spec that Kubernetes allows to change in a running pod, and have the same QoS class:
// it decides where the pod's cgroup is, which the processes in it cannot leave.
func follows(old, next manifest.Object) bool {
	was, ok := old.(*v1.Pod)
	if !ok {
		return old != nil
	}
	is := next.(*v1.Pod)
	return equality.Semantic.DeepEqual(fixed(&was.Spec), fixed(&is.Spec)) && // treats [] as nil
		qos.ComputePodQOS(was) == qos.ComputePodQOS(is)
}

// fixed returns the part of a pod's spec that cannot change. It clears fields that have no effect
// in crisp and that Kubernetes sets by default.
func fixed(spec *v1.PodSpec) *v1.PodSpec {
	spec = spec.DeepCopy()
	spec.ActiveDeadlineSeconds, spec.TerminationGracePeriodSeconds, spec.Tolerations, spec.EphemeralContainers = nil, nil, nil, nil
	spec.EnableServiceLinks, spec.SchedulerName, spec.SchedulingGroup = nil, "", nil
	for _, list := range [][]v1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			list[i].Image, list[i].ImagePullPolicy, list[i].Resources = "", "", v1.ResourceRequirements{Limits: manifest.OnlyDevices(list[i].Resources.Limits)}
			// The default for each resource that the container has.
			list[i].ResizePolicy = slices.DeleteFunc(list[i].ResizePolicy, func(p v1.ContainerResizePolicy) bool { return p.RestartPolicy == v1.NotRequired })
		}
	}
	return spec
}

// templateOf returns the pod template of a workload, nil for another object.
func templateOf(o manifest.Object) *v1.PodTemplateSpec {
	switch o := o.(type) {
	case *appsv1.Deployment:
		return &o.Spec.Template
	case *appsv1.StatefulSet:
		return &o.Spec.Template
	case *appsv1.DaemonSet:
		return &o.Spec.Template
	case *batchv1.Job:
		return &o.Spec.Template
	}
	return nil
}

// keepTemplate returns given, which is next as JSON, with old's text of the pod template if next's
// means the same, else nil. What a client has read, and puts again, has the defaults: as another
// template it would replace the pods, or start a Job over. If restarts, so does a template that does
// not know of a restart.
func keepTemplate(given []byte, next manifest.Object, old *record, restarts bool) []byte {
	if old == nil || old.Deleted != nil || old.decoded == nil {
		return nil
	}
	was, now := templateOf(old.decoded), templateOf(next)
	if was == nil || now == nil {
		return nil
	}
	was, now = meaning(was), meaning(now)
	if now.Annotations[restartedAt] == "" && restarts {
		delete(was.Annotations, restartedAt)
	}
	if !equality.Semantic.DeepEqual(was, now) {
		return nil
	}
	var object, spec map[string]json.RawMessage
	var before struct {
		Spec struct{ Template json.RawMessage }
	}
	if json.Unmarshal(given, &object) != nil || json.Unmarshal(object["spec"], &spec) != nil || json.Unmarshal(old.Object, &before) != nil ||
		equalJSON(spec["template"], before.Spec.Template) {
		return nil
	}
	spec["template"] = before.Spec.Template
	text, err := json.Marshal(spec)
	if err != nil {
		return nil
	}
	object["spec"] = text
	if text, err = json.Marshal(object); err != nil {
		return nil
	}
	return text
}

// restartedAt is the annotation of a template by which kubectl, and crisp, restart its pods.
const restartedAt = "kubectl.kubernetes.io/restartedAt"

// meaning returns a template without the hash of its text, and without fields that have no effect
// here and a default in Kubernetes.
func meaning(t *v1.PodTemplateSpec) *v1.PodTemplateSpec {
	t = t.DeepCopy()
	delete(t.Annotations, manifest.AnnotationHash)
	t.CreationTimestamp = metav1.Time{}
	t.Spec.EnableServiceLinks, t.Spec.SchedulerName, t.Spec.SchedulingGroup = nil, "", nil
	return t
}

func equalJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}
