package agent

import (
	"slices"

	"github.com/crisp-cri/crisp/agent/admit"
	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// allocate returns the pod with its allocated resources, resized if the node has room; nil for
// a nil pod.
func (a *agent) allocate(pod *v1.Pod) *v1.Pod {
	if pod == nil {
		return nil
	}
	return a.pods.Allocate(pod, func(pod *v1.Pod) *podsync.Pending {
		if why := admit.Infeasible(a.pods.Requests(pod), a.host.Allocatable()); why != nil {
			return why
		}
		return a.admission.CanResize(pod, a.pods.Allocated())
	})
}

// retryResizes tries the deferred resizes again.
func (a *agent) retryResizes(wanted map[types.UID]bool) {
	deferred, pool := a.pods.Deferred(wanted), a.workers.Pool()
	if pool == nil {
		return
	}
	for _, pod := range a.wanted.Pods() {
		if slices.Contains(deferred, pod.UID) {
			pool.Set(podsync.KeyOf(pod), a.allocate(pod))
		}
	}
}
