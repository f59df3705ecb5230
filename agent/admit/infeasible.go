package admit

import (
	"fmt"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Infeasible returns why a resize can never be granted, or nil: the requests exceed what the
// node has for all pods together. The message is that of kubelet v1.35. Since v1.36 the API
// server, which this agent does without, refuses such a resize before a kubelet sees it.
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
