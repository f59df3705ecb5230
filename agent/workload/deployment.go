package workload

import (
	"strconv"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func deployment(d *appsv1.Deployment, pods []Pod, now time.Time) Plan {
	r := rollout{
		owner: d, template: &d.Spec.Template, label: "pod-template-hash",
		replicas: int(*d.Spec.Replicas), minReady: time.Duration(d.Spec.MinReadySeconds) * time.Second,
	}
	r.atOnce = r.replicas
	if d.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		r.atOnce = maxUnavailable(d)
	}
	plan := r.plan(pods, now)
	with := d.DeepCopy()
	with.Status = appsv1.DeploymentStatus{
		ObservedGeneration: d.Generation,
		Replicas:           int32(len(plan.Pods)), UpdatedReplicas: r.updated, ReadyReplicas: r.ready,
		AvailableReplicas: r.available, UnavailableReplicas: int32(r.replicas) - r.available,
	}
	available := v1.ConditionFalse
	if r.available >= int32(r.replicas-maxUnavailable(d)) && (r.available > 0 || r.replicas == 0) {
		available = v1.ConditionTrue
	}
	with.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentAvailable, Status: available, Reason: "MinimumReplicas" + map[v1.ConditionStatus]string{v1.ConditionTrue: "Available", v1.ConditionFalse: "Unavailable"}[available]}}
	plan.Status = with
	return plan
}

// maxUnavailable is how many pods may be away during an update. 25 % is
// Kubernetes' default; less than one would make no update possible, as there is
// no surge here.
func maxUnavailable(d *appsv1.Deployment) int {
	limit := intstr.FromString("25%")
	if u := d.Spec.Strategy.RollingUpdate; u != nil && u.MaxUnavailable != nil {
		limit = *u.MaxUnavailable
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(&limit, int(*d.Spec.Replicas), false)
	if err != nil {
		return 1
	}
	return max(n, 1)
}

func daemonSet(d *appsv1.DaemonSet, pods []Pod, now time.Time) Plan {
	r := rollout{owner: d, template: &d.Spec.Template, label: "controller-revision-hash", replicas: 1, atOnce: 1}
	plan := r.plan(pods, now)
	with := d.DeepCopy()
	with.Status = appsv1.DaemonSetStatus{
		ObservedGeneration: d.Generation, DesiredNumberScheduled: 1, CurrentNumberScheduled: 1,
		UpdatedNumberScheduled: r.updated, NumberReady: r.ready, NumberAvailable: r.available, NumberUnavailable: 1 - r.available,
	}
	plan.Status = with
	return plan
}

// A rollout brings pods from one template to the next.
type rollout struct {
	owner    manifest.Object
	template *v1.PodTemplateSpec
	label    string // has the revision
	replicas int
	atOnce   int // pods that may be unavailable
	minReady time.Duration

	updated, ready, available int32 // counted by plan
}

func (r *rollout) plan(pods []Pod, now time.Time) Plan {
	revision := r.template.Annotations[manifest.AnnotationHash]
	short := revision[:min(len(revision), 10)]
	there := map[string]Pod{}
	for _, p := range pods {
		there[p.Name] = p
	}
	plan := Plan{Pods: make([]*v1.Pod, r.replicas)}
	unavailable := 0
	old := map[int]bool{} // of the pods that are available
	for i := range plan.Pods {
		next := makePod(r.owner, r.template, r.owner.GetName()+"-"+strconv.Itoa(i), revision, map[string]string{r.label: short})
		plan.Pods[i] = next
		p, known := there[next.Name]
		at, ready := availableAt(p.Status, r.minReady)
		available := known && ready && !at.After(now)
		if known && ready && at.After(now) {
			plan.Again = earliest(plan.Again, at)
		}
		current := known && p.UID == next.UID
		if current {
			r.updated++
		}
		if known && ready {
			r.ready++
		}
		switch {
		case !available:
			unavailable++ // of an old one nothing is lost: it is replaced at once
		case current:
			r.available++
		default:
			r.available++
			old[i] = true
			plan.Pods[i] = p.Pod
		}
	}
	for i := range plan.Pods {
		if !old[i] || unavailable >= r.atOnce {
			continue
		}
		unavailable++
		p := plan.Pods[i]
		plan.Pods[i] = makePod(r.owner, r.template, p.Name, revision, map[string]string{r.label: short})
	}
	return plan
}
