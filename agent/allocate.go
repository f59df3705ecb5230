package agent

import (
	"fmt"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// allocate returns the pod with the resources that it may have: those it asks for,
// or, if it asks for others than it was accepted with and they are not to be had,
// those it has.
func (a *agent) allocate(pod *v1.Pod) *v1.Pod {
	if pod == nil {
		return nil
	}
	was := a.files.Pod(pod.UID)
	if was == nil || sameResources(pod, was) {
		a.pods.resizes.set(pod.UID, nil)
		return pod
	}
	why := a.infeasible(pod)
	if why == nil {
		why = a.admission.fits(pod, a.pods.Allocated())
	}
	a.pods.resizes.set(pod.UID, why)
	if why == nil {
		return pod
	}
	return holding(pod, was)
}

// sameResources reports whether both pods, which have the same containers, ask
// for the same.
func sameResources(a, b *v1.Pod) bool {
	of := func(p *v1.Pod) []v1.ResourceRequirements {
		var list []v1.ResourceRequirements
		for _, containers := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range containers {
				list = append(list, containers[i].Resources)
			}
		}
		return list
	}
	return equality.Semantic.DeepEqual(of(a), of(b)) && equality.Semantic.DeepEqual(a.Spec.Resources, b.Spec.Resources)
}

// infeasible says why this node can never give a pod what it asks for: it has less
// for all pods together. The words are the kubelet's of v1.35; since v1.36 the API
// server, which there is none of here, refuses such a resize before a kubelet sees it.
func (a *agent) infeasible(pod *v1.Pod) *podsync.Pending {
	requests, allocatable := a.pods.Requests(pod), a.host.node.Node().Status.Allocatable
	for _, name := range []v1.ResourceName{v1.ResourceMemory, v1.ResourceCPU} {
		has, known := allocatable[name]
		if wants := requests[name]; known && wants.Cmp(has) > 0 {
			amount := (*resource.Quantity).Value
			if name == v1.ResourceCPU {
				amount = (*resource.Quantity).MilliValue
			}
			return &podsync.Pending{Reason: v1.PodReasonInfeasible, Message: fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d", name, amount(&wants), amount(&has))}
		}
	}
	return nil
}

// retryResizes looks again at resizes that may have become possible.
func (a *agent) retryResizes(wanted map[types.UID]bool) {
	for uid, p := range a.pods.resizes.all() {
		if !wanted[uid] {
			a.pods.resizes.set(uid, nil)
			continue
		}
		if p.Reason != v1.PodReasonDeferred {
			continue
		}
		for _, pod := range a.wanted.Pods() {
			if pool := a.workers.pool.Load(); pod.UID == uid && pool != nil {
				pool.Set(podsync.KeyOf(pod), a.allocate(pod))
			}
		}
	}
}
