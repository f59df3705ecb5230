package probe

import (
	"sync"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
)

// Results are the current results of probes. The zero value is empty. They are safe for concurrent
// use.
type Results struct {
	mu sync.Mutex
	by map[string]podsync.Probes // by container ID; guarded by mu
}

// Of returns the results for the pod's containers in have, by container ID.
func (r *Results) Of(pod *v1.Pod, have podsync.Have) map[string]podsync.Probes {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]podsync.Probes{}
	for _, c := range have.Containers {
		if found, ok := r.by[c.ID]; ok && c.UID == string(pod.UID) {
			out[c.ID] = found
		}
	}
	return out
}

// set sets the result of a probe of a container and reports whether it has changed.
func (r *Results) set(kind Kind, id string, to podsync.Result) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.by[id]
	field := kind.field(&now)
	if *field == to {
		return false
	}
	*field = to
	r.putLocked(id, now)
	return true
}

// clear removes the result of a probe of a container.
func (r *Results) clear(kind Kind, id string) { r.set(kind, id, podsync.Unknowable) }

func (r *Results) putLocked(id string, now podsync.Probes) {
	if now == (podsync.Probes{}) {
		delete(r.by, id)
		return
	}
	if r.by == nil {
		r.by = map[string]podsync.Probes{}
	}
	r.by[id] = now
}

func (k Kind) field(p *podsync.Probes) *podsync.Result {
	switch k {
	case Startup:
		return &p.Startup
	case Liveness:
		return &p.Liveness
	}
	return &p.Readiness
}
