// Package workload computes the pods that a Deployment, StatefulSet, DaemonSet or Job wants on this
// node. It is pure: it takes the workload, its pods, their statuses and the time, and returns the
// wanted pods.
//
// The names of pods end in a number: a Deployment web of three has web-0 to web-2. Such names are
// easy to type, and a restarted agent recognizes them without a record. A new pod gets the first
// free number. Often it replaces a pod of the same name, and starts when that one has ended. The
// extra pods of an update's surge get higher numbers, which they keep.
//
// The statuses of a Job's pods record its progress, so the pods stay wanted after they have ended.
// The only other record is when a suspended Job was resumed: the startTime in the Job's status
// (apiserver/store).
package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/source"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// AnnotationRevision is manifest's.
const AnnotationRevision = manifest.AnnotationRevision

// Expand plans a workload: it is the source.Expander.
func Expand(o manifest.Object, pods []source.WorkloadPod, now time.Time) source.Plan {
	switch o := o.(type) {
	case *appsv1.Deployment:
		return deployment(o, pods, now)
	case *appsv1.StatefulSet:
		return statefulSet(o, pods, now)
	case *appsv1.DaemonSet:
		return daemonSet(o, pods, now)
	case *batchv1.Job:
		return job(o, pods, now)
	}
	return source.Plan{}
}

// makePod makes a pod from a template. Its UID is a hash of owner, name and revision, so that a
// restarted agent makes the same pod.
func makePod(owner manifest.Object, t *v1.PodTemplateSpec, name, revision string, labels map[string]string) *v1.Pod {
	pod := &v1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: *t.ObjectMeta.DeepCopy(),
		Spec:       *t.Spec.DeepCopy(),
	}
	pod.Name, pod.Namespace = name, owner.GetNamespace()
	sum := sha256.Sum256([]byte(manifest.Key(owner) + "\x00" + name + "\x00" + revision))
	pod.UID = types.UID(hex.EncodeToString(sum[:16]))
	pod.CreationTimestamp = owner.GetCreationTimestamp()
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	maps.Copy(pod.Labels, labels)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	maps.Copy(pod.Annotations, map[string]string{
		manifest.AnnotationHash:     string(pod.UID),
		manifest.AnnotationSource:   owner.GetAnnotations()[manifest.AnnotationSource],
		manifest.AnnotationFile:     owner.GetAnnotations()[manifest.AnnotationFile],
		manifest.AnnotationWorkload: manifest.Key(owner),
		AnnotationRevision:          revision,
	})
	return pod
}

// availableAt reports whether a pod is ready, and if so when it becomes or became available.
func availableAt(s v1.PodStatus, minReady time.Duration, now time.Time) (at time.Time, ready bool) {
	if at, ready = podsync.Ready(&s); ready {
		at = podsync.After(at, minReady, now)
	}
	return at, ready
}
