package workload

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// planPaused plans a paused rollout. Its pods keep their templates until it is resumed. Like the
// ReplicaSets of a paused Deployment in Kubernetes, it is still scaled, and ended pods are
// replaced. A new pod gets the most common template among the pods, or the current one if there are
// no pods. If the rollout was paused during an update, up to surge more pods than replicas stay.
func (r *rollout) planPaused(ended []*v1.Pod) {
	most := r.replicas
	if current := r.count(isCurrent); current > 0 && current < len(r.members) {
		most += r.surge
	}
	if surplus := len(r.members) - most; surplus > 0 {
		slices.Reverse(r.members) // the highest indexes go first
		r.drop(surplus, func(member) bool { return true })
		slices.Reverse(r.members)
	}
	r.addLike(r.replicas-len(r.members), r.common(ended))
}

// common returns a pod with the most common template, of the ended pods if there are no others. In
// a tie an old template wins over the current one. It returns nil if there is no pod.
func (r *rollout) common(ended []*v1.Pod) *v1.Pod {
	pods := ended
	if len(r.members) > 0 {
		pods = nil
		for _, m := range r.members {
			pods = append(pods, m.Pod)
		}
	}
	present := r.newPod(0).Annotations[AnnotationRevision]
	of := map[string]int{}
	var like *v1.Pod
	for _, p := range pods {
		revision := p.Annotations[AnnotationRevision]
		of[revision]++
		if like == nil {
			like = p
			continue
		}
		best := like.Annotations[AnnotationRevision]
		if n := of[revision] - of[best]; n > 0 || n == 0 && best == present {
			like = p
		}
	}
	return like
}

// addLike adds n pods with the template of like, or with the current template if like is nil.
func (r *rollout) addLike(n int, like *v1.Pod) {
	before := len(r.members)
	r.add(n, nil)
	for i := range r.members[before:] {
		r.members[before+i].become(r, like)
	}
}

// become gives a new member the template of like, unless like is nil or has the same one.
func (m *member) become(r *rollout, like *v1.Pod) {
	if like == nil || like.Annotations[AnnotationRevision] == m.Annotations[AnnotationRevision] {
		return
	}
	template := &v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(like.Labels), Annotations: maps.Clone(like.Annotations)}, Spec: *like.Spec.DeepCopy()}
	template.Spec.EphemeralContainers = nil // not part of the template
	m.Pod = makePod(r.owner, template, m.Name, like.Annotations[AnnotationRevision], map[string]string{r.label: like.Labels[r.label]})
	m.current = false
}
