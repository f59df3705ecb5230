package agent

import (
	"maps"
	"slices"

	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// admittedPods are the pods of the node (node.Pods).
type admittedPods interface {
	Active([]*v1.Pod) []*v1.Pod       // those that have not ended
	HasStatus(*v1.Pod) bool           // whether it was admitted or rejected, perhaps by an earlier agent
	Requests(*v1.Pod) v1.ResourceList // with the pod's overhead
}

// nodePressure has the node's pressure conditions (housekeeping.Keeper).
type nodePressure interface {
	Pressure() []v1.NodeConditionType // those that are true now
}

// An admitter admits pods. It lets node.CheckAdmission decide, given the pods that were admitted
// before, and ends the pods that are preempted. It is not safe for concurrent use.
type admitter struct {
	agent    *Agent
	pods     admittedPods
	pressure nodePressure

	admitted map[types.UID]bool   // pods that may have no status yet
	summed   map[types.UID]summed // valid for the very same *v1.Pod: a change in place makes another
}

func newAdmitter(a *Agent, pods admittedPods, pressure nodePressure) *admitter {
	return &admitter{agent: a, pods: pods, pressure: pressure, admitted: map[types.UID]bool{}, summed: map[types.UID]summed{}}
}

// beside returns the other pods that were admitted and have not ended. It drops its records of
// pods that have ended.
func (a *admitter) beside(pod *v1.Pod, others []*v1.Pod) []*v1.Pod {
	there := map[types.UID]bool{}
	list := slices.DeleteFunc(a.pods.Active(others), func(o *v1.Pod) bool {
		there[o.UID] = true
		in := a.admitted[o.UID] || a.pods.HasStatus(o)
		return o.UID == pod.UID || !in
	})
	maps.DeleteFunc(a.admitted, func(uid types.UID, _ bool) bool { return !there[uid] })
	maps.DeleteFunc(a.summed, func(uid types.UID, _ summed) bool { return !there[uid] && uid != pod.UID })
	return list
}

type summed struct {
	pod      *v1.Pod
	requests v1.ResourceList
}

// Requests implements node.PodFacts. The requests of a pod are summed up only once, since every new
// pod is compared with all others. The list is shared and read-only.
func (a *admitter) Requests(pod *v1.Pod) v1.ResourceList {
	if pod.Spec.RuntimeClassName != nil {
		return a.pods.Requests(pod) // the overhead of its RuntimeClass may change
	}
	s := a.summed[pod.UID]
	if s.pod != pod {
		s = summed{pod, a.pods.Requests(pod)}
		a.summed[pod.UID] = s
	}
	return s.requests
}

func (a *admitter) node() *node.AdmissionInput {
	n, o := a.agent.Node.Node(), &a.agent.o
	return &node.AdmissionInput{
		Name: o.NodeName, Labels: n.Labels, Allocatable: n.Status.Allocatable, UnsafeSysctls: o.Node.UnsafeSysctls, NoPrivileged: o.Node.NoPrivileged,
		Pressure: a.pressure.Pressure(), Features: a.agent.host.Readiness.Get().Features, Pods: a,
	}
}

func (a *admitter) Handler(pod *v1.Pod) *cri.RuntimeHandlerFeatures {
	handler := ""
	if pod.Spec.RuntimeClassName != nil {
		class, err := a.agent.Wanted.RuntimeClass(*pod.Spec.RuntimeClassName)
		if err != nil {
			return nil // the class may still come; the sandbox waits for it
		}
		handler = class.Handler
	}
	return a.agent.host.Readiness.HandlerFeatures(handler)
}

// Admit decides whether a new pod may run beside the others. It returns why not, with an event;
// or it returns nil and ends the pods that this one preempts.
func (a *admitter) Admit(pod *v1.Pod, others []*v1.Pod) *podsync.Verdict {
	v, victims := node.CheckAdmission(pod, a.beside(pod, others), a.node())
	if v != nil {
		a.agent.Events.Event(status.PodRef(pod), v1.EventTypeWarning, v.Reason, v.Message)
		return v
	}
	a.admitted[pod.UID] = true
	for _, victim := range victims {
		a.agent.Workers.End(victim, node.Preempted())
	}
	return nil
}

// CanAdmit reports whether Admit would admit the pod now. It changes nothing.
func (a *admitter) CanAdmit(pod *v1.Pod, others []*v1.Pod) bool {
	v, _ := node.CheckAdmission(pod, a.beside(pod, others), a.node())
	return v == nil
}

// CanResize returns why the node has no room now for the pod's requests, or nil.
func (a *admitter) CanResize(pod *v1.Pod, others []*v1.Pod) *podsync.Pending {
	if v := node.Fits(pod, a.beside(pod, others), a.node()); v != nil {
		return &podsync.Pending{Reason: v1.PodReasonDeferred, Message: v.Message}
	}
	return nil
}

// allocate returns the pod with its allocated resources, resized if the node has room, and with the
// images that it is to run; nil for a nil pod.
func (a *Agent) allocate(pod *v1.Pod) *v1.Pod {
	if pod == nil {
		return nil
	}
	return a.updates.Pin(a.pods.Allocate(pod, func(pod *v1.Pod) *podsync.Pending {
		if why := node.Infeasible(a.pods.Requests(pod), a.host.Allocatable()); why != nil {
			return why
		}
		return a.admission.CanResize(pod, a.pods.Allocated())
	}))
}

func (a *Agent) retryResizes(wanted map[types.UID]bool) {
	deferred := a.pods.Deferred(wanted)
	for _, pod := range a.Wanted.Pods() {
		if slices.Contains(deferred, pod.UID) {
			a.Workers.Set(podsync.KeyOf(pod), a.allocate(pod))
		}
	}
}
