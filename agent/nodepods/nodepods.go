// Package nodepods knows the pods of this node, and how much of its resources they may have.
//
// A pod that asks for other resources than it was accepted with (an in-place resize, KEP-1287)
// is allocated what it asks for if the node has that. Otherwise the resize is pending, and the
// pod keeps what it has: what a pod only asks for takes no room.
package nodepods

import (
	"maps"
	"slices"
	"sync"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

// Pods are the pods of this node.
type Pods struct {
	wanted *desired.Manager
	files  *podfiles.Store
	status *status.Store

	mu      sync.Mutex
	resizes map[types.UID]podsync.Pending // those that a pod asks for and cannot have, now or ever; guarded by mu
}

// New returns the pods that wanted, files and statuses know.
func New(wanted *desired.Manager, files *podfiles.Store, statuses *status.Store) *Pods {
	return &Pods{wanted: wanted, files: files, status: statuses, resizes: map[types.UID]podsync.Pending{}}
}

// Ready reports whether all sources have reported.
func (p *Pods) Ready() bool { return p.wanted.Ready() }

// Wanted are the pods that are to run here.
func (p *Pods) Wanted() []*v1.Pod { return p.wanted.Pods() }

// Requests are those of a pod with its overhead.
func (p *Pods) Requests(pod *v1.Pod) v1.ResourceList {
	return podspec.Requests(pod, criruntime.Overhead(pod, p.wanted))
}

// Limits are those of a pod; its overhead adds to those that it has.
func (p *Pods) Limits(pod *v1.Pod) v1.ResourceList {
	return podspec.Limits(pod, criruntime.Overhead(pod, p.wanted))
}

// Allocated are the wanted pods with the resources that they may have: what one only
// asks for takes no room.
func (p *Pods) Allocated() []*v1.Pod {
	pods := p.wanted.Pods()
	pending := p.pending()
	for i, pod := range pods {
		if _, ok := pending[pod.UID]; !ok {
			continue
		}
		if was := p.files.Pod(pod.UID); was != nil {
			pods[i] = withResourcesOf(pod, was)
		}
	}
	return pods
}

// withResourcesOf returns the pod with the resources of was, which has the same containers.
func withResourcesOf(pod, was *v1.Pod) *v1.Pod {
	kept := pod.DeepCopy()
	for i := range kept.Spec.Containers {
		kept.Spec.Containers[i].Resources = was.Spec.Containers[i].Resources
	}
	for i := range kept.Spec.InitContainers {
		kept.Spec.InitContainers[i].Resources = was.Spec.InitContainers[i].Resources
	}
	kept.Spec.Resources = was.Spec.Resources
	return kept
}

// Active are the pods that have not ended. One that has failed is active as long as a
// container of it still has its grace: it occupies its ports and its memory.
func (p *Pods) Active(pods []*v1.Pod) []*v1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(pod *v1.Pod) bool { return p.Finished(pod) && !runs(p.status.Last(pod)) })
}

// runs reports whether a container of the pod runs.
func runs(s *v1.PodStatus) bool {
	return slices.ContainsFunc(slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses), func(c v1.ContainerStatus) bool {
		return c.State.Running != nil
	})
}

// Finished reports whether the pod has Failed or Succeeded.
func (p *Pods) Finished(pod *v1.Pod) bool {
	return podsync.Terminal(p.status.Last(pod))
}

// HasStatus reports whether the pod has been admitted, or rejected.
func (p *Pods) HasStatus(pod *v1.Pod) bool { return p.status.Last(pod) != nil }

// Allocate returns the pod with the resources that it may have: those it asks for, or those it
// has if it asks for others than it was accepted with and fits says why they do not fit.
func (p *Pods) Allocate(pod *v1.Pod, fits func(*v1.Pod) *podsync.Pending) *v1.Pod {
	was := p.files.Pod(pod.UID)
	var why *podsync.Pending
	if was != nil && !sameResources(pod, was) {
		why = fits(pod)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if why == nil {
		delete(p.resizes, pod.UID)
		return pod
	}
	p.resizes[pod.UID] = *why
	return withResourcesOf(pod, was)
}

// Pending says why the resize of a pod is pending; nil if there is none.
func (p *Pods) Pending(uid types.UID) *podsync.Pending {
	if why, ok := p.pending()[uid]; ok {
		return &why
	}
	return nil
}

// pending returns all resizes that are pending, as a copy.
func (p *Pods) pending() map[types.UID]podsync.Pending {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.resizes)
}

// Deferred returns the pods whose resize may become possible. Those that are not wanted any
// more are forgotten.
func (p *Pods) Deferred(wanted map[types.UID]bool) []types.UID {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.resizes, func(uid types.UID, _ podsync.Pending) bool { return !wanted[uid] })
	var list []types.UID
	for uid, why := range p.resizes {
		if why.Reason == v1.PodReasonDeferred {
			list = append(list, uid)
		}
	}
	return list
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
