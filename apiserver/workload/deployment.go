package workload

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/crisp-cri/crisp/agent/source"
)

func deployment(d *appsv1.Deployment, pods []source.WorkloadPod, now time.Time) source.Plan {
	r := rollout{
		owner: d, template: &d.Spec.Template, label: "pod-template-hash",
		replicas: int(*d.Spec.Replicas), minReady: time.Duration(d.Spec.MinReadySeconds) * time.Second,
	}
	r.surge, r.unavailable = fenceposts(d)
	r.paused = d.Spec.Paused
	r.inPlace = d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType
	plan := r.plan(pods, now)
	with := d.DeepCopy()
	with.Status = appsv1.DeploymentStatus{
		ObservedGeneration: d.Generation,
		Replicas:           int32(len(plan.Pods)), UpdatedReplicas: r.updated, ReadyReplicas: r.ready,
		AvailableReplicas: r.available, UnavailableReplicas: int32(len(plan.Pods)) - r.available,
	}
	available := appsv1.DeploymentCondition{Type: appsv1.DeploymentAvailable, Status: v1.ConditionFalse, Reason: "MinimumReplicasUnavailable"}
	if r.available >= int32(r.replicas-r.unavailable) {
		available.Status, available.Reason = v1.ConditionTrue, "MinimumReplicasAvailable"
	}
	with.Status.Conditions = []appsv1.DeploymentCondition{available}
	if d.Spec.Paused { // the reason and message of Kubernetes' controller
		with.Status.Conditions = append(with.Status.Conditions, appsv1.DeploymentCondition{
			Type: appsv1.DeploymentProgressing, Status: v1.ConditionUnknown, Reason: "DeploymentPaused", Message: "Deployment is paused",
		})
	}
	plan.Status = with
	return plan
}

// fenceposts returns maxSurge and maxUnavailable as numbers of pods. Both are 25 % by default. A
// percentage is rounded up for maxSurge and down for maxUnavailable. If both are 0, which would
// prevent any update, one pod may be unavailable.
func fenceposts(d *appsv1.Deployment) (surge, unavailable int) {
	if d.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType {
		return 0, 0
	}
	replicas := int(*d.Spec.Replicas)
	of := func(limit *intstr.IntOrString, up bool) int {
		n, _ := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(limit, intstr.FromString("25%")), replicas, up) // the manifest was validated
		return n
	}
	var u appsv1.RollingUpdateDeployment
	if d.Spec.Strategy.RollingUpdate != nil {
		u = *d.Spec.Strategy.RollingUpdate
	}
	surge, unavailable = of(u.MaxSurge, true), of(u.MaxUnavailable, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, min(unavailable, replicas)
}

func daemonSet(d *appsv1.DaemonSet, pods []source.WorkloadPod, now time.Time) source.Plan {
	r := rollout{owner: d, template: &d.Spec.Template, label: "controller-revision-hash", replicas: 1, inPlace: true}
	plan := r.plan(pods, now)
	with := d.DeepCopy()
	with.Status = appsv1.DaemonSetStatus{
		ObservedGeneration: d.Generation, DesiredNumberScheduled: 1, CurrentNumberScheduled: 1,
		UpdatedNumberScheduled: r.updated, NumberReady: r.ready, NumberAvailable: r.available, NumberUnavailable: 1 - r.available,
	}
	plan.Status = with
	return plan
}
