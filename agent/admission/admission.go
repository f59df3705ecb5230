// Package admission admits pods. It lets the pure package admit decide, given the pods that
// were admitted before, and ends the pods that are preempted.
package admission

import (
	"maps"
	"slices"

	"github.com/crisp-cri/crisp/agent/admit"
	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/event"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/podworkers"
	"github.com/crisp-cri/crisp/agent/readiness"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Options are the arguments of New. All but UnsafeSysctls and NoPrivileged are required.
type Options struct {
	NodeName      string
	UnsafeSysctls []string // that pods may set besides the safe ones
	NoPrivileged  bool

	Node      *node.State
	Readiness *readiness.Monitor // has the features of the runtime and its handlers
	Pods      Pods
	Classes   *desired.Manager // has the RuntimeClasses
	Pressure  Pressure
	Workers   *podworkers.Workers
	Events    event.Recorder
}

// Pods are the pods of the node (nodepods.Pods).
type Pods interface {
	Active([]*v1.Pod) []*v1.Pod       // those that have not ended
	HasStatus(*v1.Pod) bool           // whether it was admitted or rejected, perhaps by an earlier agent
	Requests(*v1.Pod) v1.ResourceList // with the pod's overhead
}

// Pressure has the node's pressure conditions (housekeeping.Keeper).
type Pressure interface {
	Pressure() []v1.NodeConditionType // those that are true now
}

// An Admitter admits pods. It is not safe for concurrent use.
type Admitter struct {
	o Options

	admitted map[types.UID]bool   // pods that may have no status yet
	summed   map[types.UID]summed // valid for the very same *v1.Pod: a change in place makes another
}

// New returns an Admitter that has admitted no pods.
func New(o Options) *Admitter {
	return &Admitter{o: o, admitted: map[types.UID]bool{}, summed: map[types.UID]summed{}}
}

// beside returns the other pods that were admitted and have not ended. It drops its records of
// pods that have ended.
func (a *Admitter) beside(pod *v1.Pod, others []*v1.Pod) []*v1.Pod {
	there := map[types.UID]bool{}
	list := slices.DeleteFunc(a.o.Pods.Active(others), func(o *v1.Pod) bool {
		there[o.UID] = true
		in := a.admitted[o.UID] || a.o.Pods.HasStatus(o)
		return o.UID == pod.UID || !in
	})
	maps.DeleteFunc(a.admitted, func(uid types.UID, _ bool) bool { return !there[uid] })
	maps.DeleteFunc(a.summed, func(uid types.UID, _ summed) bool { return !there[uid] && uid != pod.UID })
	return list
}

// A summed pod is a pod with its requests.
type summed struct {
	pod      *v1.Pod
	requests v1.ResourceList
}

// Requests implements admit.Pods. The requests of a pod are summed up only once, since every new
// pod is compared with all others. The list is shared and read-only.
func (a *Admitter) Requests(pod *v1.Pod) v1.ResourceList {
	if pod.Spec.RuntimeClassName != nil {
		return a.o.Pods.Requests(pod) // the overhead of its RuntimeClass may change
	}
	s := a.summed[pod.UID]
	if s.pod != pod {
		s = summed{pod, a.o.Pods.Requests(pod)}
		a.summed[pod.UID] = s
	}
	return s.requests
}

func (a *Admitter) node() *admit.Node {
	n := a.o.Node.Node()
	return &admit.Node{
		Name: a.o.NodeName, Labels: n.Labels, Allocatable: n.Status.Allocatable, UnsafeSysctls: a.o.UnsafeSysctls, NoPrivileged: a.o.NoPrivileged,
		Pressure: a.o.Pressure.Pressure(), Features: a.o.Readiness.Get().Features, Pods: a,
	}
}

// Handler implements admit.Pods.
func (a *Admitter) Handler(pod *v1.Pod) *cri.RuntimeHandlerFeatures {
	handler := ""
	if pod.Spec.RuntimeClassName != nil {
		class, err := a.o.Classes.RuntimeClass(*pod.Spec.RuntimeClassName)
		if err != nil {
			return nil // the class may still come; the sandbox waits for it
		}
		handler = class.Handler
	}
	return a.o.Readiness.HandlerFeatures(handler)
}

// Admit decides whether a new pod may run beside the others. It returns why not, with an event;
// or it returns nil and ends the pods that this one preempts.
func (a *Admitter) Admit(pod *v1.Pod, others []*v1.Pod) *podsync.Verdict {
	v, victims := admit.Check(pod, a.beside(pod, others), a.node())
	if v != nil {
		a.o.Events.Event(event.Pod(pod), v1.EventTypeWarning, v.Reason, v.Message)
		return v
	}
	a.admitted[pod.UID] = true
	for _, victim := range victims {
		a.o.Workers.End(victim, admit.Preempted())
	}
	return nil
}

// CanAdmit reports whether Admit would admit the pod now. It changes nothing.
func (a *Admitter) CanAdmit(pod *v1.Pod, others []*v1.Pod) bool {
	v, _ := admit.Check(pod, a.beside(pod, others), a.node())
	return v == nil
}

// CanResize returns why the node has no room now for the pod's requests, or nil.
func (a *Admitter) CanResize(pod *v1.Pod, others []*v1.Pod) *podsync.Pending {
	if v := admit.Fits(pod, a.beside(pod, others), a.node()); v != nil {
		return &podsync.Pending{Reason: v1.PodReasonDeferred, Message: v.Message}
	}
	return nil
}
