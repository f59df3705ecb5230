package agent

import (
	"maps"
	"slices"

	"github.com/crisp-cri/crisp/agent/admit"
	"github.com/crisp-cri/crisp/agent/event"
	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// beside are the pods that were let in before this one and have not ended.
func (c *care) beside(pod *v1.Pod, others []*v1.Pod) []*v1.Pod {
	there := map[types.UID]bool{}
	list := slices.DeleteFunc(c.roster.active(others), func(o *v1.Pod) bool {
		there[o.UID] = true
		in := c.admitted[o.UID] || c.status.Last(o) != nil
		return o.UID == pod.UID || !in
	})
	maps.DeleteFunc(c.admitted, func(uid types.UID, _ bool) bool { return !there[uid] })
	maps.DeleteFunc(c.summed, func(uid types.UID, _ summed) bool { return !there[uid] && uid != pod.UID })
	return list
}

// A summed pod is one whose requests are known.
type summed struct {
	pod      *v1.Pod
	requests v1.ResourceList
}

// requests are those of a pod, with its overhead. They are summed once: each pod that
// comes is held against all others. Who asks does not change them.
func (c *care) requests(pod *v1.Pod) v1.ResourceList {
	if pod.Spec.RuntimeClassName != nil {
		return c.sum(pod) // the overhead of its class may change
	}
	s := c.summed[pod.UID]
	if s.pod != pod {
		s = summed{pod, c.sum(pod)}
		c.summed[pod.UID] = s
	}
	return s.requests
}

func (c *care) place() *admit.Node {
	n := c.node.Node()
	return &admit.Node{
		Name: c.NodeName, Labels: n.Labels, Allocatable: n.Status.Allocatable, UnsafeSysctls: c.Care.UnsafeSysctls, NoPrivileged: c.Care.NoPrivileged,
		Pressure: c.evict.Pressure(), Features: c.gate.Get().Features, Requests: c.requests, Handler: c.handlerOf,
	}
}

func (c *care) handlerOf(pod *v1.Pod) *cri.RuntimeHandlerFeatures {
	handler := ""
	if pod.Spec.RuntimeClassName != nil {
		class, err := c.wanted.RuntimeClass(*pod.Spec.RuntimeClassName)
		if err != nil {
			return nil // it may come yet; the sandbox waits for it
		}
		handler = class.Handler
	}
	return c.host.Features(handler)
}

// admit decides whether a new pod may run; others may have to go for it.
func (c *care) admit(pod *v1.Pod, others []*v1.Pod) *podsync.Verdict {
	v, victims := admit.Check(pod, c.beside(pod, others), c.place())
	if v != nil {
		c.events.Event(event.Pod(pod), v1.EventTypeWarning, v.Reason, v.Message)
		return v
	}
	c.admitted[pod.UID] = true
	for _, victim := range victims {
		c.end(victim, admit.Preempted())
	}
	return nil
}

// room reports whether admit would let the pod in now.
func (c *care) room(pod *v1.Pod, others []*v1.Pod) bool {
	v, _ := admit.Check(pod, c.beside(pod, others), c.place())
	return v == nil
}

func (c *care) fits(pod *v1.Pod, others []*v1.Pod) *podsync.Pending {
	if v := admit.Fits(pod, c.beside(pod, others), c.place()); v != nil {
		return &podsync.Pending{Reason: v1.PodReasonDeferred, Message: v.Message}
	}
	return nil
}

// end ends a pod for good.
func (c *care) end(pod *v1.Pod, v podsync.Verdict) {
	c.events.Event(event.Pod(pod), v1.EventTypeWarning, v.Reason, v.Message)
	if pool := c.pool.Load(); pool != nil {
		pool.Fail(podsync.KeyOf(pod), pod.UID, v)
	}
}
