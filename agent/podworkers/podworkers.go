// Package podworkers gives the API (stop, start, restart, drain) and the housekeeping access to
// the workers of all pods, which belong to the agent's loop.
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

// Options configure Workers.
type Options struct {
	Events   event.Recorder
	Wanted   *desired.Manager
	Node     *node.State
	Stopped  *stopped.Store
	Statuses *status.Store
	Log      *slog.Logger
}

// Workers are the workers of all pods. There are none before the loop begins.
type Workers struct {
	o      Options
	pool   atomic.Pointer[worker.Pool]
	scarce atomic.Bool // disk space is short: dead containers are removed
}

// New returns the Workers of a loop that has not started yet.
func New(o Options) *Workers { return &Workers{o: o} }

// Begin sets the pool of workers. The loop calls it when it begins.
func (w *Workers) Begin(pool *worker.Pool) { w.pool.Store(pool) }

// Pool returns the pool of workers, nil before the loop begins.
func (w *Workers) Pool() *worker.Pool { return w.pool.Load() }

// Scarce reports whether dead containers should be removed, see Tidy.
func (w *Workers) Scarce() bool { return w.scarce.Load() }

// Wake makes the worker of key look at its pod.
func (w *Workers) Wake(key podsync.Key) {
	if pool := w.pool.Load(); pool != nil {
		pool.Wake(key)
	}
}

// Restart stops containers of a pod by ID, which start again as its restart policy says. It
// returns false if the pod is not wanted or the loop has not begun; see worker.Pool.Restart.
func (w *Workers) Restart(pod *v1.Pod, ids []string, grace *time.Duration) bool {
	pool := w.pool.Load()
	return pool != nil && pool.Restart(podsync.KeyOf(pod), pod.UID, ids, grace)
}

// Tidy makes the workers remove dead containers until done is called. ok is false, and done nil,
// before the loop begins.
func (w *Workers) Tidy() (done func(), ok bool) {
	pool := w.pool.Load()
	if pool == nil {
		return nil, false
	}
	w.scarce.Store(true)
	pool.WakeAll()
	return func() { w.scarce.Store(false) }, true
}

// End ends a pod for good, with an event: its phase becomes Failed.
func (w *Workers) End(pod *v1.Pod, v podsync.Verdict) {
	w.o.Events.Event(event.Pod(pod), v1.EventTypeWarning, v.Reason, v.Message)
	if pool := w.pool.Load(); pool != nil {
		pool.Fail(podsync.KeyOf(pod), pod.UID, v)
	}
}
