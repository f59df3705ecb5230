package worker

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
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

// Admit sets a wanted pod under key that was rejected before: it may start after all.
func (p *Pool) Admit(key podsync.Key, pod *v1.Pod) {
	p.mu.Lock()
	if w, ok := p.workers[key]; ok && w.verdict != nil && w.verdict.Rejected {
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

// WakeAll makes every worker look at its pod.
func (p *Pool) WakeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.workers {
		w.poke()
	}
}

// Wait returns when all workers have ended.
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
