package node

import (
	"maps"
	"slices"
	"sync"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

// Pods are the pods of this node, and the resources that are allocated to them.
//
// If a pod requests other resources than those it was accepted with (an in-place resize,
// KEP-1287), it gets them if the node has them. Otherwise the resize is pending and the pod
// keeps its resources: requested resources that are not allocated do not count as used.
type Pods struct {
	wanted *source.Manager
	files  *podfiles.Store
	status *status.Store

	mu      sync.Mutex
	resizes map[types.UID]podsync.Pending // pending resizes, deferred or infeasible; guarded by mu
}

// NewPods returns the pods in wanted, with their files and statuses.
func NewPods(wanted *source.Manager, files *podfiles.Store, statuses *status.Store) *Pods {
	return &Pods{wanted: wanted, files: files, status: statuses, resizes: map[types.UID]podsync.Pending{}}
}

// Ready reports whether all sources have reported.
func (p *Pods) Ready() bool { return p.wanted.Ready() }

// Wanted returns the pods that should run here, ordered by key.
func (p *Pods) Wanted() []*v1.Pod { return p.wanted.Pods() }

// Requests returns the requests of a pod, with its overhead.
func (p *Pods) Requests(pod *v1.Pod) v1.ResourceList {
	return podspec.Requests(pod, criruntime.Overhead(pod, p.wanted))
}

// Limits returns the limits of a pod. Its overhead is added to existing limits.
func (p *Pods) Limits(pod *v1.Pod) v1.ResourceList {
	return podspec.Limits(pod, criruntime.Overhead(pod, p.wanted))
}

// Allocated returns the wanted pods with the resources that are allocated to them, without those
// of a pending resize.
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

// Active returns those of pods that have not ended. A failed pod is active while one of its
// containers still runs, in its grace period: it occupies ports and memory.
func (p *Pods) Active(pods []*v1.Pod) []*v1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(pod *v1.Pod) bool { return over(p.status.Last(pod)) })
}

// over reports whether a pod has finished and none of its containers runs; s is nil if it has no
// status. The status is read once for both: it may be dropped at any time.
func over(s *v1.PodStatus) bool {
	return podsync.Terminal(s) && !slices.ContainsFunc(slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses), func(c v1.ContainerStatus) bool {
		return c.State.Running != nil
	})
}

// Finished reports whether the pod has Failed or Succeeded.
func (p *Pods) Finished(pod *v1.Pod) bool {
	return podsync.Terminal(p.status.Last(pod))
}

// Halted reports whether the pod has finished or was stopped on request.
func (p *Pods) Halted(pod *v1.Pod) bool { return podsync.Halted(p.status.Last(pod)) }

// HasStatus reports whether the pod has a status, and so has been admitted or rejected.
func (p *Pods) HasStatus(pod *v1.Pod) bool { return p.status.Last(pod) != nil }

// Allocate returns the pod with the resources that are allocated to it: those it requests or, if
// they differ from those it was accepted with and fits returns why it cannot get them, the
// latter. The resize is then pending.
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

// Pending returns why the resize of a pod is pending; nil if none is.
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

// Deferred returns the pods whose pending resize may become possible. It drops the pending
// resizes of pods that are no longer wanted.
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

// sameResources reports whether two pods with the same containers have the same requests and
// limits.
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
