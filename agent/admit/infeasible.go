package admit

import (
	"fmt"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Infeasible says why a node can never give a pod what it requests: it has less for all pods
// together. The words are the kubelet's of v1.35; since v1.36 the API server, which there is
// none of here, refuses such a resize before a kubelet sees it.
func Infeasible(requests, allocatable v1.ResourceList) *podsync.Pending {
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
