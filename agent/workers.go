package agent

import (
	"sync/atomic"
	"time"

	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/event"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/stopped"
	"github.com/crisp-cri/crisp/agent/worker"
	v1 "k8s.io/api/core/v1"
)

// workers are those of all pods. There are none before the loop begins.
type workers struct {
	events  event.Recorder
	wanted  *desired.Manager
	node    *node.State
	stopped *stopped.Store
	pool    atomic.Pointer[worker.Pool]
	scarce  atomic.Bool // there is too little disk: dead containers are removed
}

// wake has the worker of key look at its pod.
func (w *workers) wake(key podsync.Key) {
	if pool := w.pool.Load(); pool != nil {
		pool.Wake(key)
	}
}

// Restart stops containers of a pod, which start again as its restart policy says.
func (w *workers) Restart(pod *v1.Pod, ids []string, grace *time.Duration) bool {
	pool := w.pool.Load()
	return pool != nil && pool.Restart(podsync.KeyOf(pod), pod.UID, ids, grace)
}

// Tidy is as housekeeping.Workers says.
func (w *workers) Tidy() (done func(), ok bool) {
	pool := w.pool.Load()
	if pool == nil {
		return nil, false
	}
	w.scarce.Store(true)
	pool.WakeAll()
	return func() { w.scarce.Store(false) }, true
}

// End ends a pod for good.
func (w *workers) End(pod *v1.Pod, v podsync.Verdict) {
	w.events.Event(event.Pod(pod), v1.EventTypeWarning, v.Reason, v.Message)
	if pool := w.pool.Load(); pool != nil {
		pool.Fail(podsync.KeyOf(pod), pod.UID, v)
	}
}
