package agent

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
	"k8s.io/apimachinery/pkg/types"
)

// nodePods are the pods of this node, and how much of its resources they may have. They are
// housekeeping.Pods.
type nodePods struct {
	wanted  *desired.Manager
	files   *podfiles.Store
	status  *status.Store
	resizes resizes
}

// Ready reports whether all sources have reported.
func (r *nodePods) Ready() bool { return r.wanted.Ready() }

// Wanted are the pods that are to run here.
func (r *nodePods) Wanted() []*v1.Pod { return r.wanted.Pods() }

// Requests are those of a pod with its overhead.
func (r *nodePods) Requests(pod *v1.Pod) v1.ResourceList {
	return podspec.Requests(pod, criruntime.Overhead(pod, r.wanted))
}

// limits are those of a pod; its overhead adds to those that it has.
func (r *nodePods) limits(pod *v1.Pod) v1.ResourceList {
	return podspec.Limits(pod, criruntime.Overhead(pod, r.wanted))
}

// Allocated are the wanted pods with the resources that they may have: what one only
// asks for takes no room.
func (r *nodePods) Allocated() []*v1.Pod {
	pods := r.wanted.Pods()
	pending := r.resizes.all()
	for i, pod := range pods {
		if _, ok := pending[pod.UID]; !ok {
			continue
		}
		if was := r.files.Pod(pod.UID); was != nil {
			pods[i] = holding(pod, was)
		}
	}
	return pods
}

// holding returns the pod with the resources of was, which has the same containers.
func holding(pod, was *v1.Pod) *v1.Pod {
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
// container of it still has its grace: it holds its ports and its memory.
func (r *nodePods) Active(pods []*v1.Pod) []*v1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(pod *v1.Pod) bool { return r.Finished(pod) && !runs(r.status.Last(pod)) })
}

// runs reports whether a container of the pod runs.
func runs(s *v1.PodStatus) bool {
	return slices.ContainsFunc(slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses), func(c v1.ContainerStatus) bool {
		return c.State.Running != nil
	})
}

// Finished reports whether the pod has Failed or Succeeded.
func (r *nodePods) Finished(pod *v1.Pod) bool {
	return podsync.Terminal(r.status.Last(pod))
}

// resizes are those that a pod asks for and cannot have, now or ever.
type resizes struct {
	mu  sync.Mutex
	why map[types.UID]podsync.Pending // guarded by mu
}

func (r *resizes) pending(uid types.UID) *podsync.Pending {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, ok := r.why[uid]; ok {
		return &p
	}
	return nil
}

func (r *resizes) set(uid types.UID, p *podsync.Pending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p == nil {
		delete(r.why, uid)
		return
	}
	if r.why == nil {
		r.why = map[types.UID]podsync.Pending{}
	}
	r.why[uid] = *p
}

// all returns the UIDs, to be looked at without the lock.
func (r *resizes) all() map[types.UID]podsync.Pending {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.why)
}
