package agent

import (
	"maps"
	"slices"

	"github.com/crisp-cri/crisp/agent/admit"
	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/event"
	"github.com/crisp-cri/crisp/agent/housekeeping"
	"github.com/crisp-cri/crisp/agent/nodepods"
	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// An admission lets pods in. Only the loop uses it.
type admission struct {
	config  *NodeConfig
	name    string // of the node
	host    host
	pods    *nodepods.Pods
	wanted  *desired.Manager
	workers *workers
	keeper  *housekeeping.Keeper
	events  event.Recorder

	admitted map[types.UID]bool   // pods that were let in and may have no status yet
	summed   map[types.UID]summed // of pods that are not changed in place
	sum      summer
}

// A summer knows what pods request, with their overhead.
type summer interface {
	Requests(*v1.Pod) v1.ResourceList
}

// beside are the pods that were let in before this one and have not ended.
func (d *admission) beside(pod *v1.Pod, others []*v1.Pod) []*v1.Pod {
	there := map[types.UID]bool{}
	list := slices.DeleteFunc(d.pods.Active(others), func(o *v1.Pod) bool {
		there[o.UID] = true
		in := d.admitted[o.UID] || d.pods.HasStatus(o)
		return o.UID == pod.UID || !in
	})
	maps.DeleteFunc(d.admitted, func(uid types.UID, _ bool) bool { return !there[uid] })
	maps.DeleteFunc(d.summed, func(uid types.UID, _ summed) bool { return !there[uid] && uid != pod.UID })
	return list
}

// A summed pod is one whose requests are known.
type summed struct {
	pod      *v1.Pod
	requests v1.ResourceList
}

// Requests is as admit.Pods says. They are summed once: each pod that comes is held
// against all others. They are read-only; shared.
func (d *admission) Requests(pod *v1.Pod) v1.ResourceList {
	if pod.Spec.RuntimeClassName != nil {
		return d.sum.Requests(pod) // the overhead of its class may change
	}
	s := d.summed[pod.UID]
	if s.pod != pod {
		s = summed{pod, d.sum.Requests(pod)}
		d.summed[pod.UID] = s
	}
	return s.requests
}

func (d *admission) place() *admit.Node {
	n := d.host.node.Node()
	return &admit.Node{
		Name: d.name, Labels: n.Labels, Allocatable: n.Status.Allocatable, UnsafeSysctls: d.config.UnsafeSysctls, NoPrivileged: d.config.NoPrivileged,
		Pressure: d.keeper.Pressure(), Features: d.host.readiness.Get().Features, Pods: d,
	}
}

// Handler is as admit.Pods says.
func (d *admission) Handler(pod *v1.Pod) *cri.RuntimeHandlerFeatures {
	handler := ""
	if pod.Spec.RuntimeClassName != nil {
		class, err := d.wanted.RuntimeClass(*pod.Spec.RuntimeClassName)
		if err != nil {
			return nil // it may come yet; the sandbox waits for it
		}
		handler = class.Handler
	}
	return d.host.Features(handler)
}

// admit decides whether a new pod may run; others may have to go for it.
func (d *admission) admit(pod *v1.Pod, others []*v1.Pod) *podsync.Verdict {
	v, victims := admit.Check(pod, d.beside(pod, others), d.place())
	if v != nil {
		d.events.Event(event.Pod(pod), v1.EventTypeWarning, v.Reason, v.Message)
		return v
	}
	d.admitted[pod.UID] = true
	for _, victim := range victims {
		d.workers.End(victim, admit.Preempted())
	}
	return nil
}

// room reports whether admit would let the pod in now.
func (d *admission) room(pod *v1.Pod, others []*v1.Pod) bool {
	v, _ := admit.Check(pod, d.beside(pod, others), d.place())
	return v == nil
}

func (d *admission) fits(pod *v1.Pod, others []*v1.Pod) *podsync.Pending {
	if v := admit.Fits(pod, d.beside(pod, others), d.place()); v != nil {
		return &podsync.Pending{Reason: v1.PodReasonDeferred, Message: v.Message}
	}
	return nil
}
