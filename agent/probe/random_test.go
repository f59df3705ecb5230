package probe_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/probe"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Random containers are restarted, stopped and found running; probes are slow, hang and cannot be
// run; clocks are set back and forward; and the pod ends or is removed. Their probes must ask at
// the same times as the kubelet's and have the same results (kubelet).
func TestRandomProbes(t *testing.T) {
	for seed := range 400 {
		synctest.Test(t, func(t *testing.T) {
			l := newLife(uint64(seed))
			got := l.play(t)
			for kind := range specs(&l.container) {
				if got, want := strings.Join(got[kind], "\n"), strings.Join(l.kubelet(probe.Kind(kind)), "\n"); got != want {
					t.Errorf("seed %d, %v: got\n%s\nwant\n%s\nof %s", seed, probe.Kind(kind), got, want, l)
				}
			}
		})
		if t.Failed() {
			return
		}
	}
}

// specs returns the probes of a container by kind.
func specs(c *v1.Container) map[int]*v1.Probe {
	all := map[int]*v1.Probe{int(probe.Startup): c.StartupProbe, int(probe.Liveness): c.LivenessProbe, int(probe.Readiness): c.ReadinessProbe}
	for kind, spec := range all {
		if spec == nil {
			delete(all, kind)
		}
	}
	return all
}

// A life is the random history of a container, and the answers of its probes.
type life struct {
	container v1.Container
	never     bool     // its container is not restarted
	changes   []change // by time
	added     time.Duration
	removed   time.Duration   // when all probes are removed
	quiet     time.Duration   // when the startup and liveness probes are removed
	answers   [3][]answer     // by kind and number of the question
	pokes     []time.Duration // when to call AskNow; none if the readiness probe is slow
}

// A change is a status that begins at a time.
type change struct {
	at      time.Duration
	id      string        // "": there is no container
	started time.Duration // the reported start, by a clock that may have been wrong
	running bool
	ready   bool
	phase   v1.PodPhase
}

type answer struct {
	took   time.Duration
	ok     bool
	failed bool // the probe could not be run
}

// agentSince is the start of the agent, before all events.
const agentSince = -time.Hour

func newLife(seed uint64) *life {
	rng := rand.New(rand.NewPCG(seed, 5))
	chance := func(oneIn int) bool { return rng.IntN(oneIn) == 0 }
	l := &life{never: chance(4), added: time.Duration(rng.IntN(5)) * time.Second, removed: time.Duration(100+rng.IntN(400)) * time.Second}
	l.quiet = l.removed
	if chance(4) {
		l.quiet -= time.Duration(rng.IntN(50)) * time.Second
	}
	for kind, into := range []**v1.Probe{&l.container.StartupProbe, &l.container.LivenessProbe, &l.container.ReadinessProbe} {
		if chance(3) {
			continue
		}
		p := &v1.Probe{
			InitialDelaySeconds: int32(max(rng.IntN(40)-20, 0)), PeriodSeconds: int32(1 + rng.IntN(15)), TimeoutSeconds: int32(1 + rng.IntN(20)),
			SuccessThreshold: 1, FailureThreshold: int32(1 + rng.IntN(4)),
		}
		if kind == int(probe.Readiness) {
			p.SuccessThreshold = int32(1 + rng.IntN(3))
		}
		p.Exec = &v1.ExecAction{Command: []string{probe.Kind(kind).String()}}
		*into = p
		for ok := chance(2); len(l.answers[kind]) < 2000; ok = ok != chance(3) {
			// The fractions of seconds differ by kind, so that no answers coincide.
			a := answer{took: 10*time.Millisecond + []time.Duration{1000003, 1300021, 1700023}[kind], ok: ok, failed: chance(8)}
			switch rng.IntN(8) {
			case 0:
				a.took += time.Duration(rng.IntN(int(p.TimeoutSeconds))) * time.Second
			case 1: // it hangs
				a.took, a.ok = a.took+time.Duration(p.TimeoutSeconds)*time.Second, false
			}
			l.answers[kind] = append(l.answers[kind], a)
		}
	}
	if p := l.container.ReadinessProbe; p != nil && chance(2) {
		for i := range l.answers[probe.Readiness] {
			l.answers[probe.Readiness][i].took %= time.Second
		}
		for at := time.Second; at < l.removed; at += time.Duration(1+rng.IntN(40))*time.Second + time.Millisecond {
			l.pokes = append(l.pokes, at+600*time.Millisecond)
		}
	}
	now := change{phase: v1.PodPending}
	number := 0
	for at := time.Duration(0); at < l.removed; at += time.Duration(1+rng.IntN(60)) * time.Second {
		now.at = at + 500*time.Millisecond // off the probes' ticks
		switch {
		case now.id == "" || chance(2): // another container
			number++
			now.id, now.running, now.ready, now.phase = fmt.Sprint(number), true, false, v1.PodRunning
			now.started = now.at
			switch {
			case number == 1 && chance(2): // started, and perhaps found ready, by an earlier agent
				now.started = [...]time.Duration{agentSince - time.Hour, agentSince - 5*time.Second}[rng.IntN(2)]
				now.ready = chance(2)
			case chance(4):
				now.started += time.Duration(rng.IntN(200)-100) * time.Second
			}
		case chance(6):
			now.phase = v1.PodFailed
		default:
			now.running, now.ready = false, false
		}
		l.changes = append(l.changes, now)
		if now.phase == v1.PodFailed {
			break
		}
	}
	return l
}

func (l *life) String() string {
	text := fmt.Sprintf("added %v, quiet %v, removed %v, never restarted: %t", l.added, l.quiet, l.removed, l.never)
	for kind, p := range specs(&l.container) {
		text += fmt.Sprintf("\n%v: delay %d, period %d, timeout %d, thresholds %d and %d", probe.Kind(kind), p.InitialDelaySeconds, p.PeriodSeconds, p.TimeoutSeconds, p.SuccessThreshold, p.FailureThreshold)
	}
	for _, c := range l.changes {
		text += fmt.Sprintf("\n%+v", c)
	}
	return text
}

// at returns the status at time t.
func (l *life) at(t time.Duration) change {
	i, found := slices.BinarySearchFunc(l.changes, t, func(c change, t time.Duration) int { return cmp.Compare(c.at, t) })
	if !found {
		i--
	}
	if i < 0 {
		return change{phase: v1.PodPending}
	}
	return l.changes[i]
}

// hasStarted reports whether a container has started by time t: its startup probe has succeeded
// (when has the times), it has none, or an earlier agent found it ready.
func (l *life) hasStarted(c change, when map[string]time.Duration, t time.Duration) bool {
	if l.container.StartupProbe == nil || c.ready {
		return true
	}
	at, ok := when[c.id]
	return ok && at <= t
}

// play runs the probes of the life, and returns the questions and results of each.
func (l *life) play(t *testing.T) map[int][]string {
	p := &play{life: l, begun: time.Now().Add(-agentSince), lines: map[int][]string{}, asked: map[string]int{}, started: map[string]time.Duration{}}
	p.pod = &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{l.container}, RestartPolicy: v1.RestartPolicyAlways}}
	p.pod.UID, p.pod.Spec.Containers[0].Name = "u", "app"
	if l.never {
		p.pod.Spec.RestartPolicy = v1.RestartPolicyNever
	}
	m := probe.New(t.Context(), probe.Options{Ask: p, Statuses: p, Results: &p.results, Events: p})
	until := func(at time.Duration) { time.Sleep(time.Until(p.begun.Add(at))) }
	until(l.added)
	m.Add(p.pod, p)
	var pokes sync.WaitGroup
	for _, at := range l.pokes {
		if at > l.added {
			pokes.Go(func() {
				until(at)
				m.AskNow("u", "app")
			})
		}
	}
	until(l.quiet + 700*time.Millisecond)
	m.Remove("u", probe.Startup, probe.Liveness)
	until(l.removed + 700*time.Millisecond)
	m.Remove("u")
	m.Wait()
	pokes.Wait()
	time.Sleep(time.Minute) // the probes must not ask any more
	if left := p.shown(probe.Startup) + p.shown(probe.Liveness) + p.shown(probe.Readiness); left != "" {
		t.Errorf("results are left: %s", left)
	}
	return p.lines
}

// A play is a life being played.
type play struct {
	*life
	pod     *v1.Pod
	begun   time.Time
	results probe.Results

	mu      sync.Mutex
	lines   map[int][]string
	asked   map[string]int
	started map[string]time.Duration // when startup probes succeeded, by container
}

func (p *play) now() time.Duration { return time.Since(p.begun) }

func (p *play) Event(v1.ObjectReference, string, string, string) {}

func (p *play) Get(types.UID) *v1.PodStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.at(p.now())
	s := &v1.PodStatus{Phase: c.phase}
	if c.id == "" {
		return s
	}
	of := v1.ContainerStatus{Name: "app", ContainerID: "crisp://" + c.id, Ready: c.ready, Started: new(p.hasStarted(c, p.started, p.now()))}
	if c.running {
		of.State.Running = &v1.ContainerStateRunning{StartedAt: metav1.Time{Time: p.begun.Add(c.started)}}
	} else {
		of.State.Terminated = &v1.ContainerStateTerminated{}
	}
	s.ContainerStatuses = []v1.ContainerStatus{of}
	return s
}

// shown returns the results of a kind of probe, by container.
func (p *play) shown(kind probe.Kind) string {
	text := ""
	var all []podsync.Container
	for i := range 100 {
		all = append(all, podsync.Container{ID: fmt.Sprint(i), UID: "u"})
	}
	of := p.results.Of(p.pod, podsync.Have{Containers: all})
	for _, c := range all {
		if r := [...]podsync.Result{of[c.ID].Startup, of[c.ID].Liveness, of[c.ID].Readiness}[kind]; r != podsync.Unknowable {
			text += fmt.Sprintf(" %s:%d", c.ID, r)
		}
	}
	return text
}

func (p *play) Probed(_ podsync.Key, kind probe.Kind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := p.shown(kind)
	p.lines[int(kind)] = append(p.lines[int(kind)], fmt.Sprintf("%v result%s", p.now(), text))
	if c := p.at(p.now()); kind == probe.Startup && strings.Contains(text+" ", fmt.Sprintf(" %s:%d ", c.id, podsync.Success)) {
		p.started[c.id] = p.now()
	}
}

func (p *play) Ask(ctx context.Context, _ *v1.Pod, _ *v1.PodStatus, _ *v1.Container, id string, spec *v1.Probe) (probe.Answer, error) {
	name := spec.Exec.Command[0]
	kind := slices.IndexFunc([]probe.Kind{probe.Startup, probe.Liveness, probe.Readiness}, func(k probe.Kind) bool { return k.String() == name })
	p.mu.Lock()
	a := p.answers[kind][p.asked[name]]
	p.asked[name]++
	p.lines[kind] = append(p.lines[kind], fmt.Sprintf("%v ask %s", p.now(), id))
	p.mu.Unlock()
	select {
	case <-time.After(a.took):
	case <-ctx.Done():
		return probe.Answer{}, ctx.Err()
	}
	if a.failed {
		return probe.Answer{}, errors.New("cannot be asked")
	}
	return probe.Answer{OK: a.ok}, nil
}

// kubelet returns the questions and results of a probe by the rules of the kubelet's worker. The
// worker looks at the status when it is added and then once per period, which restarts when it is
// made to ask at once. If periods pass while it waits for an answer, it looks once after the
// answer.
func (l *life) kubelet(kind probe.Kind) []string {
	w := &worker{life: l, kind: kind, spec: specs(&l.container)[int(kind)], results: map[string]podsync.Result{}}
	if kind != probe.Startup && l.container.StartupProbe != nil {
		startup := &worker{life: l, kind: probe.Startup, spec: l.container.StartupProbe, results: map[string]podsync.Result{}}
		startup.run()
		w.started = startup.succeeded
	}
	w.run()
	return w.lines
}

type worker struct {
	*life
	kind      probe.Kind
	spec      *v1.Probe
	lines     []string
	results   map[string]podsync.Result // by container
	started   map[string]time.Duration  // when the startup probe succeeded, by container
	succeeded map[string]time.Duration  // when this probe succeeded, by container
	now       time.Duration
	id        string        // the last known container
	seen      time.Duration // when it was first seen
	streak    int           // number of equal answers in a row
	last      bool
	resting   bool // until there is another container
	asked     int
}

func (w *worker) run() {
	if w.kind == probe.Startup {
		w.succeeded = map[string]time.Duration{}
		w.started = w.succeeded
	}
	end := w.removed + 700*time.Millisecond
	if w.kind != probe.Readiness {
		end = w.quiet + 700*time.Millisecond
	}
	period := time.Duration(w.spec.PeriodSeconds) * time.Second
	tick := w.added // the next tick is a period later
	var pokes []time.Duration
	if w.kind == probe.Readiness {
		pokes = slices.DeleteFunc(slices.Clone(w.pokes), func(at time.Duration) bool { return at <= w.added })
	}
	for w.now = tick; w.now < end && w.look(end); {
		missed := (w.now - tick) / period // of the missed ticks one remains
		switch tick += missed * period; {
		case len(pokes) > 0 && pokes[0] < max(w.now, tick+period): // ticks count from here
			w.now = max(w.now, pokes[0])
			tick, pokes = w.now, pokes[1:]
		case missed == 0:
			tick += period
			w.now = tick
		}
	}
}

// look looks at the status once, and asks if a question is due. It reports whether to continue.
func (w *worker) look(end time.Duration) bool {
	c := w.at(w.now)
	switch {
	case c.phase == v1.PodFailed:
		return false
	case c.id == "":
		return true
	case c.id != w.id:
		w.follow(c)
	}
	if w.resting {
		return true
	}
	if !c.running {
		w.set(podsync.Failing)
		return !w.never
	}
	delay := time.Duration(w.spec.InitialDelaySeconds) * time.Second
	if w.now-c.started < delay && w.now-w.seen < delay { // a clock that was set back does not block the probe
		return true
	}
	if w.hasStarted(c, w.started, w.now) == (w.kind == probe.Startup) {
		return true
	}
	var a answer
	for range 3 {
		w.line("ask " + w.id)
		a = w.answers[w.kind][w.asked]
		w.asked++
		if w.now += a.took; w.now >= end {
			return false
		}
		if !a.failed {
			break
		}
	}
	if a.failed {
		return true
	}
	w.answered(a.ok)
	return true
}

// follow starts again with another container. It keeps the result of an earlier agent.
func (w *worker) follow(c change) {
	first := w.id == ""
	delete(w.results, w.id)
	w.id, w.seen, w.resting, w.streak = c.id, w.now, false, 0
	switch {
	case c.running && c.started < agentSince-10*time.Second, w.kind == probe.Readiness && first && c.ready:
		if w.kind == probe.Startup && w.hasStarted(c, w.started, w.now) {
			w.set(podsync.Success)
		}
	case w.kind == probe.Liveness:
		w.set(podsync.Success)
	case w.kind == probe.Readiness:
		w.set(podsync.Failing)
	}
}

func (w *worker) answered(ok bool) {
	if ok != w.last {
		w.streak = 0
	}
	w.last = ok
	w.streak++
	need, result := w.spec.SuccessThreshold, podsync.Success
	if !ok {
		need, result = w.spec.FailureThreshold, podsync.Failing
	}
	if w.streak < int(need) {
		return
	}
	w.set(result)
	w.resting = w.kind == probe.Startup || w.kind == probe.Liveness && !ok
}

func (w *worker) set(r podsync.Result) {
	if w.results[w.id] == r {
		return
	}
	w.results[w.id] = r
	w.line(fmt.Sprintf("result %s:%d", w.id, r))
	if c := w.at(w.now); w.kind == probe.Startup && r == podsync.Success && c.id == w.id {
		w.succeeded[w.id] = w.now
	}
}

func (w *worker) line(text string) { w.lines = append(w.lines, fmt.Sprintf("%v %s", w.now, text)) }
