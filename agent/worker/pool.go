package worker

import (
	"context"
	"log/slog"
	"sync"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
)

// A Pool has the workers of all pods. Its methods do not block.
type Pool struct {
	ctx context.Context
	rt  Runtime
	log *slog.Logger
	wg  sync.WaitGroup

	mu      sync.Mutex              // also guards what each worker is told
	workers map[podsync.Key]*worker // guarded by mu
}

// NewPool returns a Pool whose workers run until ctx ends. They then leave
// everything as it is.
func NewPool(ctx context.Context, rt Runtime, log *slog.Logger) *Pool {
	return &Pool{ctx: ctx, rt: rt, log: log, workers: map[podsync.Key]*worker{}}
}

// Set says which pod is wanted under key; nil is none, and whatever is there
// under key is ended.
func (p *Pool) Set(key podsync.Key, pod *v1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, ok := p.workers[key]
	if !ok {
		w = &worker{
			key: key, pool: p, rt: p.rt, want: pod,
			log:       p.log.With("pod", key.String()),
			wake:      make(chan struct{}, 1),
			interrupt: func() {},
			failures:  map[string]failure{},
		}
		p.workers[key] = w
		p.wg.Go(func() { w.run(p.ctx, func() bool { return p.leave(key, w) }) })
		return
	}
	w.setLocked(pod)
}

// Wake makes the worker of key look at its pod. It reports false if there is
// none.
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

// leave lets a worker end, unless a pod was set in the meantime.
func (p *Pool) leave(key podsync.Key, w *worker) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.want != nil {
		return false
	}
	delete(p.workers, key)
	return true
}
