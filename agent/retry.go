package agent

import (
	"maps"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/internal/backoff"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// evicted is the back-off of a pod that was evicted or preempted, after which it begins anew. The
// next agent starts with the first pause.
type evicted struct {
	pauses *backoff.Backoff // nil before the first time
	due    time.Time        // zero while the pod runs
	began  time.Time        // when it last began anew
	asked  bool             // it need not wait (crisp start)
}

const (
	minBackOff, maxBackOff = 10 * time.Second, 5 * time.Minute
	// stableAfter is how long a pod must have run for its back-off to start over.
	stableAfter = 2 * maxBackOff
)

// backedOff reports whether the back-off of an evicted pod is over, which begins with the first call.
func (e *evicted) backedOff(now time.Time) bool {
	if e.due.IsZero() {
		if e.pauses == nil || now.Sub(e.began) >= stableAfter {
			e.pauses = backoff.New(minBackOff, maxBackOff)
		}
		e.due = now.Add(e.pauses.Next())
	}
	return !now.Before(e.due)
}

// stays reports whether no other pod replaces this one, and it is not being deleted. Those of a
// StatefulSet keep their names.
func stays(pod *v1.Pod) bool {
	workload := pod.Annotations[manifest.AnnotationWorkload]
	return (workload == "" || strings.HasPrefix(workload, "statefulset ")) && pod.DeletionTimestamp == nil
}

// retryFailed admits pods that fit now, because other pods have gone or changed, or the node is
// no longer under pressure: rejected ones, and those that were evicted or preempted, which nothing
// else would bring back on a single node. Those that still do not fit are not reported again.
func (a *Agent) retryFailed(wanted map[types.UID]bool) {
	maps.DeleteFunc(a.evicted, func(uid types.UID, _ *evicted) bool { return !wanted[uid] })
	asked, calm, now := a.Workers.TakeAsked(), len(a.keeper.Pressure()) == 0, time.Now()
	for _, pod := range a.Wanted.Pods() {
		s := a.Statuses.Get(pod.UID)
		if s == nil || !stays(pod) {
			continue
		}
		var e *evicted // nil if the pod was rejected
		switch {
		case status.Rejected(s):
		case podsync.Evicted(pod, s):
			if e = a.evicted[pod.UID]; e == nil {
				e = &evicted{}
				a.evicted[pod.UID] = e
			}
			e.asked = e.asked || asked[pod.UID]
			if backedOff := e.backedOff(now); !e.asked && !(backedOff && calm) {
				continue
			}
		default:
			continue
		}
		if !a.admission.CanAdmit(pod, a.pods.Allocated()) || a.admission.Admit(pod, a.pods.Allocated()) != nil {
			continue
		}
		if e != nil {
			e.due, e.began, e.asked = time.Time{}, now, false
			a.startOver(pod)
		} else if !a.dropStatus(pod) {
			continue
		}
		a.o.Log.Info("pod fits now", "pod", podsync.KeyOf(pod).String(), "evicted", e != nil)
		a.Workers.Admit(podsync.KeyOf(pod), a.allocate(pod))
	}
}

// startOver makes an evicted pod end, after which it starts as a new pod does. Its saved status
// stays until then: it has no effect on a pod that is ending, and if there is no room to record
// that, the pod is still evicted for the next agent.
func (a *Agent) startOver(pod *v1.Pod) {
	a.Files.MarkEnding(nil, podsync.Have{Files: []string{string(pod.UID)}})
	a.Statuses.Drop(pod.UID)
}
