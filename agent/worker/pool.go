package worker

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/internal/logctx"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A Pool has the workers of all pods. Its methods do not block.
type Pool struct {
	ctx context.Context
	rt  Runtime
	log *slog.Logger
	wg  sync.WaitGroup

	mu      sync.Mutex              // also guards the workers' fields that say so
	workers map[podsync.Key]*worker // guarded by mu
}

// NewPool returns a Pool whose workers run until ctx ends. They then leave pods as they are.
func NewPool(ctx context.Context, rt Runtime, log *slog.Logger) *Pool {
	return &Pool{ctx: ctx, rt: rt, log: log, workers: map[podsync.Key]*worker{}}
}

// Set sets the wanted pod under key. If it is nil, whatever exists under key is ended. A pod
// with a deletion timestamp is ended too, within its deletion grace period.
func (p *Pool) Set(key podsync.Key, pod *v1.Pod) { p.set(key, pod, nil) }

// Reject sets a wanted pod under key that was not admitted: it fails before anything of it
// starts.
func (p *Pool) Reject(key podsync.Key, pod *v1.Pod, v podsync.Verdict) {
	v.Rejected = true
	p.set(key, pod, &v)
}

// Admit sets a wanted pod under key that was rejected or ended before: it may start after all.
func (p *Pool) Admit(key podsync.Key, pod *v1.Pod) {
	p.mu.Lock()
	if w, ok := p.workers[key]; ok {
		w.verdict = nil
	}
	p.mu.Unlock()
	p.Set(key, pod)
}

func (p *Pool) set(key podsync.Key, pod *v1.Pod, v *podsync.Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, ok := p.workers[key]
	if !ok {
		w = &worker{
			key: key, pool: p, rt: p.rt, want: pod, verdict: v,
			log:       p.log,
			wake:      make(chan struct{}, 1),
			interrupt: func() {},
			shorten:   func() {},
			failures:  map[string]failure{},
			restarted: map[string]bool{},
		}
		p.workers[key] = w
		ctx := logctx.With(p.ctx, "pod", key.String())
		p.wg.Go(func() { w.run(ctx, func(r round) bool { return p.leave(key, w, r) }) })
		return
	}
	w.setLocked(pod)
	if v != nil {
		w.failLocked(*v)
	}
}

// Fail ends the pod of this UID for good: its phase becomes Failed and stays so. It returns
// false if that pod is not wanted under key.
func (p *Pool) Fail(key podsync.Key, uid types.UID, v podsync.Verdict) bool {
	return p.on(key, uid, func(w *worker) { w.failLocked(v) })
}

// Restart stops containers of the pod by ID, each after its preStop hook and within grace; nil is
// the pod's own grace period. They start again as their restart policies say. It returns false
// if that pod is not wanted under key.
func (p *Pool) Restart(key podsync.Key, uid types.UID, ids []string, grace *time.Duration) bool {
	return p.on(key, uid, func(w *worker) {
		if w.restart == nil {
			w.restart = map[string]*time.Duration{}
		}
		for _, id := range ids {
			w.restart[id] = grace
		}
		w.poke()
	})
}

// Halt wakes the worker of a pod that must stop. It interrupts the action in progress and, if
// sooner says that the containers have less time to end than before, also stops in progress.
func (p *Pool) Halt(key podsync.Key, uid types.UID, sooner bool) {
	p.on(key, uid, func(w *worker) {
		w.interrupt()
		if sooner {
			w.shorten()
		}
		w.poke()
	})
}

// on calls do with the worker of key, under the lock. It returns false if the pod of this UID is
// not wanted under key.
func (p *Pool) on(key podsync.Key, uid types.UID, do func(*worker)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, ok := p.workers[key]
	if !ok || uidOf(w.want) != uid {
		return false
	}
	do(w)
	return true
}

// Again makes the worker of key immediately retry actions that failed for lack of something on
// this node that may be there now.
func (p *Pool) Again(key podsync.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w, ok := p.workers[key]; ok {
		w.forget = true
		w.poke()
	}
}

// Wake makes the worker of key look at its pod. It returns false if there is no worker.
func (p *Pool) Wake(key podsync.Key) bool {
	p.mu.Lock()
	w, ok := p.workers[key]
	p.mu.Unlock()
	if ok {
		w.poke()
	}
	return ok
}

func (p *Pool) WakeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.workers {
		w.poke()
	}
}

func (p *Pool) Wait() { p.wg.Wait() }

// leave lets the worker of a removed pod end, unless another pod was set meanwhile.
func (p *Pool) leave(key podsync.Key, w *worker, r round) bool {
	p.mu.Lock()
	if w.want != r.pod {
		p.mu.Unlock()
		return false
	}
	delete(p.workers, key)
	p.mu.Unlock()
	if r.pod != nil {
		p.rt.Ended(key, r.pod.UID)
	}
	return true
}

type WorkersOptions struct {
	Events   status.Recorder
	Wanted   *source.Manager
	Node     *node.State
	Stopped  *Stops
	Statuses *status.Store
	Log      *slog.Logger
}

// Workers are the Pool of all pods, with what the API (stop, start, restart, drain) and the
// housekeeping ask of it. It has no workers before Begin.
type Workers struct {
	*Pool
	o      WorkersOptions
	begun  atomic.Bool
	scarce atomic.Bool // disk space is short: dead containers are removed

	mu    sync.Mutex
	asked map[types.UID]bool // guarded by mu
}

// NewWorkers returns Workers of which no pod may be set before Begin.
func NewWorkers(o WorkersOptions) *Workers {
	return &Workers{Pool: NewPool(context.Background(), nil, o.Log), o: o}
}

// Begin sets what the workers act with, until ctx ends.
func (w *Workers) Begin(ctx context.Context, rt Runtime) {
	w.ctx, w.rt = ctx, rt
	w.begun.Store(true)
}

// Begun reports whether Begin was called: the runtime has answered.
func (w *Workers) Begun() bool { return w.begun.Load() }

func (w *Workers) Scarce() bool { return w.scarce.Load() }

func (w *Workers) Restart(pod *v1.Pod, ids []string, grace *time.Duration) bool {
	return w.Pool.Restart(podsync.KeyOf(pod), pod.UID, ids, grace)
}

// Tidy makes the workers remove dead containers until done is called. ok is false, and done nil,
// before Begin.
func (w *Workers) Tidy() (done func(), ok bool) {
	if !w.Begun() {
		return nil, false
	}
	w.scarce.Store(true)
	w.WakeAll()
	return func() { w.scarce.Store(false) }, true
}

// End ends a pod for good, with an event: its phase becomes Failed.
func (w *Workers) End(pod *v1.Pod, v podsync.Verdict) {
	w.o.Events.Event(status.PodRef(pod), v1.EventTypeWarning, v.Reason, v.Message)
	w.Fail(podsync.KeyOf(pod), pod.UID, v)
}

// Stop stops a pod without deleting it, and interrupts its worker. grace is in seconds; nil is
// the pod's own grace period.
func (w *Workers) Stop(pod *v1.Pod, grace *int64) error {
	if err := w.o.Stopped.Stop(podsync.KeyOf(pod), grace, time.Now()); err != nil {
		return err
	}
	w.Halt(podsync.KeyOf(pod), pod.UID, grace != nil)
	return nil
}

// Start makes a stopped pod run again, and one that was evicted or preempted begin anew as soon as
// it fits. It reports whether the pod was stopped by Stop.
func (w *Workers) Start(pod *v1.Pod) (bool, error) {
	was, err := w.o.Stopped.Start(podsync.KeyOf(pod), time.Now())
	if podsync.Evicted(pod, &pod.Status) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.asked == nil {
			w.asked = map[types.UID]bool{}
		}
		w.asked[pod.UID] = true
	}
	w.Wake(podsync.KeyOf(pod))
	return was, err
}

// TakeAsked returns the pods that Start has asked to begin anew since the last call.
func (w *Workers) TakeAsked() map[types.UID]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	asked := w.asked
	w.asked = nil
	return asked
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
	w.WakeAll()
	return nil
}

func (w *Workers) ShowDrain() {
	_, on := w.o.Stopped.Draining()
	w.o.Node.Edit(func(n *v1.Node) { n.Spec.Unschedulable = on })
}

// GoOn continues a drain: when all pods up to a priority have stopped, it stops those of the
// next priority. Only the agent's loop may call it.
func (w *Workers) GoOn() {
	upTo, on := w.o.Stopped.Draining()
	if !on || upTo != nil && *upTo == lastPriority {
		return
	}
	pods := w.o.Wanted.Pods()
	next := int32(lastPriority)
	for _, pod := range pods {
		priority := podsync.Priority(pod)
		switch {
		case upTo == nil || priority > *upTo:
			next = min(next, priority)
		case !podsync.Halted(w.o.Statuses.Get(pod.UID)):
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
			w.Halt(podsync.KeyOf(pod), pod.UID, false)
		}
	}
}
