// Package probe runs the startup, liveness and readiness probes of containers. It also makes the
// HTTP requests of lifecycle hooks, which are like those of probes.
//
// Each probe of a container has a goroutine. It asks once per period and counts the answers. When
// they reach a threshold it publishes a new result and calls the Watcher. It does not act on
// results: a pod's worker restarts a container whose liveness probe has failed, and the pod's
// status shows readiness.
//
//	          new container              threshold reached
//	unknown ───────────────▶ initial ──────────────────────▶ success ⇄ failure
//
// The initial result is failure for readiness, success for liveness and unknown for startup. The
// other probes wait until the startup probe has succeeded. After a failure of liveness, and after
// any result of a startup probe, the probe rests until there is a new container.
//
// A container that started more than ten seconds before the agent, or that an earlier agent found
// ready, gets no initial result: it keeps its status until its probe has a result.
//
// The rules are the kubelet's, with these exceptions:
//   - A ready container that started within the ten seconds before the agent stays ready. The
//     kubelet makes it unready until the probe succeeds again.
//   - The count of equal answers in a row starts again for a new container. The kubelet's continues,
//     so that after two bad answers of one container a single one may end its successor.
//   - If the clock was set back, the initial delay counts from when the container was first seen.
package probe

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/internal/poke"
)

type Kind uint8

const (
	Startup Kind = iota
	Liveness
	Readiness
)

var kinds = [...]string{"Startup", "Liveness", "Readiness"}

func (k Kind) String() string { return kinds[k] }

// An Asker runs a probe once. An error means that the probe could not be run; a timeout is a
// negative answer.
type Asker interface {
	Ask(ctx context.Context, pod *v1.Pod, status *v1.PodStatus, c *v1.Container, id string, p *v1.Probe) (Answer, error)
}

// An Answer is the outcome of one run of a probe.
type Answer struct {
	OK      bool
	Warning bool   // OK, but with an event
	Text    string // for the event
}

type Options struct {
	Ask      Asker
	Statuses Statuses
	Results  *Results // published to
	Events   status.Recorder
}

// Statuses has the statuses of pods.
type Statuses interface {
	Get(types.UID) *v1.PodStatus // the last status; nil before the first
}

// A Watcher is notified when the result of a pod's probe has changed. It must not block.
type Watcher interface{ Probed(podsync.Key, Kind) }

type Manager struct {
	Counts *prometheus.Registry // the kubelet's prober_probe_total

	o       Options
	ctx     context.Context
	since   time.Time // when the agent was started
	answers *prometheus.CounterVec

	mu     sync.Mutex
	probes map[place]*prober // guarded by mu
	wg     sync.WaitGroup
}

type place struct {
	uid       types.UID
	container string
	kind      Kind
}

// New returns a Manager whose probes run until ctx ends.
func New(ctx context.Context, o Options) *Manager {
	counts := prometheus.NewRegistry()
	answers := promauto.With(counts).NewCounterVec(prometheus.CounterOpts{
		Name: "prober_probe_total", Help: "Number of answers of a liveness, readiness or startup probe, by result.",
	}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"})
	return &Manager{Counts: counts, o: o, ctx: ctx, since: time.Now(), answers: answers, probes: map[place]*prober{}}
}

// Add starts the probes of the pod's containers that do not run yet. They call the watcher when a
// result changes. A pod that was changed in place keeps its probes, since probes cannot change.
func (m *Manager) Add(pod *v1.Pod, watcher Watcher) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range podsync.Lasting(&pod.Spec) {
		for kind, spec := range [...]*v1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
			at := place{pod.UID, c.Name, Kind(kind)}
			if spec == nil || m.probes[at] != nil {
				continue
			}
			ctx, stop := context.WithCancel(m.ctx)
			p := &prober{m: m, at: at, pod: pod, c: c, spec: spec, watcher: watcher, stop: stop, now: make(chan struct{}, 1)}
			m.probes[at] = p
			m.wg.Go(func() { p.run(ctx) })
		}
	}
}

// Remove ends the probes of a pod: those of the given kinds, or all.
func (m *Manager) Remove(uid types.UID, kinds ...Kind) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for at, p := range m.probes {
		if at.uid == uid && (len(kinds) == 0 || slices.Contains(kinds, at.kind)) {
			p.stop()
		}
	}
}

func (m *Manager) Keep(wanted map[types.UID]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for at, p := range m.probes {
		if !wanted[at.uid] {
			p.stop()
		}
	}
}

// AskNow makes the readiness probe of a container ask at once. It is called after changes that may
// affect the answer.
func (m *Manager) AskNow(uid types.UID, container string) {
	m.mu.Lock()
	p := m.probes[place{uid, container, Readiness}]
	m.mu.Unlock()
	if p != nil {
		poke.Wake(p.now)
	}
}

func (m *Manager) Wait() { m.wg.Wait() }

func (m *Manager) left(p *prober) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.probes[p.at] == p {
		delete(m.probes, p.at)
		m.answers.DeletePartialMatch(prometheus.Labels{"probe_type": p.at.kind.String(), "container": p.at.container, "pod_uid": string(p.at.uid)})
	}
}

// count counts an answer by result: "successful", "failed" or "unknown".
func (m *Manager) count(p *prober, what string) {
	m.answers.WithLabelValues(p.at.kind.String(), what, p.at.container, p.pod.Name, p.pod.Namespace, string(p.at.uid)).Inc()
}

// Results are the current results of probes. The zero value is empty. They are safe for concurrent
// use.
type Results struct {
	mu sync.Mutex
	by map[string]podsync.Probes // by container ID; guarded by mu
}

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

func (r *Results) set(kind Kind, id string, to podsync.Result) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.by[id]
	field := kind.field(&now)
	if *field == to {
		return false
	}
	*field = to
	if r.by == nil {
		r.by = map[string]podsync.Probes{}
	}
	if r.by[id] = now; now == (podsync.Probes{}) {
		delete(r.by, id)
	}
	return true
}

func (r *Results) clear(kind Kind, id string) { r.set(kind, id, podsync.Unknowable) }

func (k Kind) field(p *podsync.Probes) *podsync.Result {
	switch k {
	case Startup:
		return &p.Startup
	case Liveness:
		return &p.Liveness
	}
	return &p.Readiness
}
