// Package podworkers has the workers of all pods do what others than the agent's loop ask
// for: the API (stop, start, restart, drain), and the housekeeping.
package podworkers

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/event"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/agent/stopped"
	"github.com/crisp-cri/crisp/agent/worker"
	v1 "k8s.io/api/core/v1"
)

// Options are what Workers go by.
type Options struct {
	Events   event.Recorder
	Wanted   *desired.Manager
	Node     *node.State
	Stopped  *stopped.Store
	Statuses *status.Store
	Log      *slog.Logger
}

// Workers are those of all pods. There are none before the loop begins.
type Workers struct {
	o      Options
	pool   atomic.Pointer[worker.Pool]
	scarce atomic.Bool // there is too little disk: dead containers are removed
}

// New returns the workers of a loop that has yet to begin.
func New(o Options) *Workers { return &Workers{o: o} }

// Begin is called with the workers when the loop has them.
func (w *Workers) Begin(pool *worker.Pool) { w.pool.Store(pool) }

// Pool returns the workers; nil before the loop begins.
func (w *Workers) Pool() *worker.Pool { return w.pool.Load() }

// Scarce reports whether dead containers are to be removed, see Tidy.
func (w *Workers) Scarce() bool { return w.scarce.Load() }

// Wake has the worker of key look at its pod.
func (w *Workers) Wake(key podsync.Key) {
	if pool := w.pool.Load(); pool != nil {
		pool.Wake(key)
	}
}

// Restart stops containers of a pod, which start again as its restart policy says.
func (w *Workers) Restart(pod *v1.Pod, ids []string, grace *time.Duration) bool {
	pool := w.pool.Load()
	return pool != nil && pool.Restart(podsync.KeyOf(pod), pod.UID, ids, grace)
}

// Tidy has dead containers removed until done is called; ok is false before the loop begins.
func (w *Workers) Tidy() (done func(), ok bool) {
	pool := w.pool.Load()
	if pool == nil {
		return nil, false
	}
	w.scarce.Store(true)
	pool.WakeAll()
	return func() { w.scarce.Store(false) }, true
}

// End ends a pod for good.
func (w *Workers) End(pod *v1.Pod, v podsync.Verdict) {
	w.o.Events.Event(event.Pod(pod), v1.EventTypeWarning, v.Reason, v.Message)
	if pool := w.pool.Load(); pool != nil {
		pool.Fail(podsync.KeyOf(pod), pod.UID, v)
	}
}
