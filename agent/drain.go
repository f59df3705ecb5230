package agent

import (
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/stopped"
	v1 "k8s.io/api/core/v1"
)

// Stop stops a pod without deleting it, and interrupts its worker. grace
// is in seconds; nil is the pod's own grace period.
func (w *workers) Stop(pod *v1.Pod, grace *int64) error {
	if err := w.stopped.Stop(podsync.KeyOf(pod), grace, time.Now()); err != nil {
		return err
	}
	w.halt(pod, grace != nil)
	return nil
}

// Start runs a stopped pod again. It returns whether the pod was stopped.
func (w *workers) Start(pod *v1.Pod) (bool, error) {
	was, err := w.stopped.Start(podsync.KeyOf(pod), time.Now())
	w.wake(podsync.KeyOf(pod))
	return was, err
}

func (w *workers) halt(pod *v1.Pod, sooner bool) {
	if pool := w.pool.Load(); pool != nil {
		pool.Halt(podsync.KeyOf(pod), pod.UID, sooner)
	}
}

// Drain stops all pods, those of the lowest priority first (see agent.drain), and keeps new
// pods from starting.
func (w *workers) Drain() error {
	if err := w.stopped.Drain(time.Now()); err != nil {
		return err
	}
	w.showDrain()
	return nil
}

// Uncordon ends a drain.
func (w *workers) Uncordon() error {
	if err := w.stopped.Uncordon(w.wanted.Pods(), time.Now()); err != nil {
		return err
	}
	w.showDrain()
	if pool := w.pool.Load(); pool != nil {
		pool.WakeAll()
	}
	return nil
}

// showDrain makes the node unschedulable during a drain.
func (w *workers) showDrain() {
	_, on := w.stopped.Draining()
	w.node.Edit(func(n *v1.Node) { n.Spec.Unschedulable = on })
}

// drain goes on with a drain: when all pods up to a priority have stopped, those of the
// next one are stopped. Only the loop calls it.
func (a *agent) drain() {
	upTo, on := a.workers.stopped.Draining()
	if !on || upTo != nil && *upTo == stopped.Last {
		return
	}
	pods := a.wanted.Pods()
	next := int32(stopped.Last)
	for _, pod := range pods {
		priority := podsync.Priority(pod)
		switch {
		case upTo == nil || priority > *upTo:
			next = min(next, priority)
		case !halted(a.status.Get(pod.UID)):
			return
		}
	}
	if err := a.workers.stopped.Raise(next); err != nil {
		a.o.Log.Error("pods not drained", "priority", next, "err", err)
		return
	}
	a.o.Log.Info("pods are being drained", "up_to_priority", next)
	for _, pod := range pods {
		if podsync.Priority(pod) <= next {
			a.workers.halt(pod, false)
		}
	}
}

// halted reports whether a pod with this status runs nothing, and will not start anything.
func halted(s *v1.PodStatus) bool {
	return s != nil && (podsync.Terminal(s) || s.Reason == podsync.StoppedReason)
}
