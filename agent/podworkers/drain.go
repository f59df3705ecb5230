package podworkers

import (
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/stopped"
	v1 "k8s.io/api/core/v1"
)

// Stop stops a pod without deleting it, and interrupts its worker. grace is in seconds; nil is
// the pod's own grace period.
func (w *Workers) Stop(pod *v1.Pod, grace *int64) error {
	if err := w.o.Stopped.Stop(podsync.KeyOf(pod), grace, time.Now()); err != nil {
		return err
	}
	w.halt(pod, grace != nil)
	return nil
}

// Start makes a stopped pod run again. It reports whether the pod was stopped by Stop.
func (w *Workers) Start(pod *v1.Pod) (bool, error) {
	was, err := w.o.Stopped.Start(podsync.KeyOf(pod), time.Now())
	w.Wake(podsync.KeyOf(pod))
	return was, err
}

// halt interrupts the worker of a pod that must stop, see worker.Pool.Halt.
func (w *Workers) halt(pod *v1.Pod, sooner bool) {
	if pool := w.pool.Load(); pool != nil {
		pool.Halt(podsync.KeyOf(pod), pod.UID, sooner)
	}
}

// Drain stops all pods, those of the lowest priority first (see GoOn), and keeps new
// pods from starting.
func (w *Workers) Drain() error {
	if err := w.o.Stopped.Drain(time.Now()); err != nil {
		return err
	}
	w.ShowDrain()
	return nil
}

// Uncordon ends a drain: the pods that it stopped run again.
func (w *Workers) Uncordon() error {
	if err := w.o.Stopped.Uncordon(w.o.Wanted.Pods(), time.Now()); err != nil {
		return err
	}
	w.ShowDrain()
	if pool := w.pool.Load(); pool != nil {
		pool.WakeAll()
	}
	return nil
}

// ShowDrain marks the node unschedulable during a drain, and schedulable otherwise.
func (w *Workers) ShowDrain() {
	_, on := w.o.Stopped.Draining()
	w.o.Node.Edit(func(n *v1.Node) { n.Spec.Unschedulable = on })
}

// GoOn continues a drain: when all pods up to a priority have stopped, it stops those of the
// next priority. Only the agent's loop may call it.
func (w *Workers) GoOn() {
	upTo, on := w.o.Stopped.Draining()
	if !on || upTo != nil && *upTo == stopped.Last {
		return
	}
	pods := w.o.Wanted.Pods()
	next := int32(stopped.Last)
	for _, pod := range pods {
		priority := podsync.Priority(pod)
		switch {
		case upTo == nil || priority > *upTo:
			next = min(next, priority)
		case !halted(w.o.Statuses.Get(pod.UID)):
			return
		}
	}
	if err := w.o.Stopped.Raise(next); err != nil {
		w.o.Log.Error("pods not drained", "priority", next, "err", err)
		return
	}
	w.o.Log.Info("pods are being drained", "up_to_priority", next)
	for _, pod := range pods {
		if podsync.Priority(pod) <= next {
			w.halt(pod, false)
		}
	}
}

// halted reports whether a pod with this status has stopped for good or on request.
func halted(s *v1.PodStatus) bool {
	return s != nil && (podsync.Terminal(s) || s.Reason == podsync.StoppedReason)
}
