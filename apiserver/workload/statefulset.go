package workload

import (
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/source"
)

// statefulSet plans pods that keep their names and claims, as Kubernetes' controller does: without
// podManagementPolicy Parallel a new pod waits until those with lower numbers are available, and an
// update replaces one pod after another, the highest number first. A pod that was evicted begins anew
// under its name, so it stays wanted.
func statefulSet(s *appsv1.StatefulSet, pods []source.WorkloadPod, now time.Time) source.Plan {
	r := rollout{owner: s, template: &s.Spec.Template, label: appsv1.StatefulSetRevisionLabel, minReady: time.Duration(s.Spec.MinReadySeconds) * time.Second}
	replicas := int(*s.Spec.Replicas)
	var plan source.Plan
	have := map[int]member{}
	for _, p := range pods {
		m, ok := r.member(p)
		if !ok || m.index >= replicas {
			continue
		}
		at, ready := availableAt(p.Status, r.minReady, now)
		m.ready, m.available = ready, ready && !at.After(now)
		if ready && !m.available {
			plan.Again = podsync.Earliest(plan.Again, at)
		}
		if before, twice := have[m.index]; !twice || !before.current { // its predecessor is still ending
			have[m.index] = m
		}
	}
	up := true // all pods before this one are available
	for i := range replicas {
		m, ok := have[i]
		if !ok && (up || s.Spec.PodManagementPolicy == appsv1.ParallelPodManagement) {
			m, ok = member{Pod: r.newPod(i), index: i, current: true}, true
		}
		if ok {
			r.members = append(r.members, m)
		}
		up = up && m.available
	}
	for i := len(r.members) - 1; i >= 0; i-- {
		if m := &r.members[i]; !m.current {
			*m = member{Pod: r.newPod(m.index), index: m.index, current: true}
		}
		if !r.members[i].available {
			break
		}
	}
	updated, next := int32(r.count(isCurrent)), revisionLabel(r.template)
	was := next
	for _, m := range r.members {
		plan.Pods = append(plan.Pods, m.Pod)
		if !m.current {
			was = m.Labels[r.label]
		}
	}
	with := s.DeepCopy()
	with.Status = appsv1.StatefulSetStatus{
		ObservedGeneration: s.Generation, Replicas: int32(len(plan.Pods)), UpdatedReplicas: updated, CurrentReplicas: updated,
		ReadyReplicas: int32(r.count(isReady)), AvailableReplicas: int32(r.count(isAvailable)), UpdateRevision: next, CurrentRevision: was,
	}
	plan.Status = with
	return plan
}

// identify gives a pod of a StatefulSet its own names and claims.
func identify(pod *v1.Pod, s *appsv1.StatefulSet, index int) {
	number := strconv.Itoa(index)
	pod.Labels[appsv1.StatefulSetPodNameLabel], pod.Labels[appsv1.PodIndexLabel] = pod.Name, number
	pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, s.Spec.ServiceName
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if slices.ContainsFunc(s.Spec.VolumeClaimTemplates, func(t v1.PersistentVolumeClaim) bool { return t.Name == v.Name }) {
			v.PersistentVolumeClaim.ClaimName += "-" + number
		}
	}
}

func revisionLabel(t *v1.PodTemplateSpec) string {
	revision := t.Annotations[manifest.AnnotationHash]
	return revision[:min(len(revision), 10)]
}
