package probe

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/internal/periodic"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// A prober is one probe of a container. Only its goroutine uses the second block of fields.
type prober struct {
	m       *Manager
	at      place
	pod     *v1.Pod
	c       *v1.Container
	spec    *v1.Probe
	watcher Watcher
	stop    context.CancelFunc
	now     chan struct{} // of capacity 1; a value makes the probe ask at once

	id     string    // of the container, as in the status
	seen   time.Time // when id was first seen
	last   bool      // whether the last answer was OK
	count  int       // number of answers in a row equal to last
	onHold bool      // rest until there is another container
}

const tries = 3

// before separates new containers from old ones: a container that started longer than this before
// the agent keeps its status.
const before = 10 * time.Second

var initial = [...]podsync.Result{Startup: podsync.Unknowable, Liveness: podsync.Success, Readiness: podsync.Failing}

func (p *prober) run(ctx context.Context) {
	defer p.m.left(p)
	defer p.stop()
	period := time.Duration(p.spec.PeriodSeconds) * time.Second
	if time.Since(p.m.since) < period {
		// All probes start with the agent, so they are spread over the period.
		if !periodic.Pause(ctx, rand.N(period)) {
			return
		}
	}
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for p.once(ctx) {
		select {
		case <-ctx.Done():
		case <-ticker.C:
		case <-p.now:
			ticker.Reset(period)
		}
		if ctx.Err() != nil {
			break
		}
	}
	if p.id != "" {
		p.m.o.Results.clear(p.at.kind, podsync.RuntimeID(p.id))
	}
}

// once asks the container if a question is due. It reports whether to continue.
func (p *prober) once(ctx context.Context) bool {
	status := p.m.o.Statuses.Get(p.at.uid)
	if status == nil {
		return true
	}
	if status.Phase == v1.PodFailed || status.Phase == v1.PodSucceeded {
		return false
	}
	c := podsync.StatusOf(p.at.container, status.ContainerStatuses, status.InitContainerStatuses)
	if c == nil || c.ContainerID == "" {
		return true
	}
	p.follow(c)
	switch {
	case p.onHold:
		return true
	case c.State.Running == nil:
		p.set(podsync.Failing)
		return c.State.Terminated == nil || podsync.Restarts(&p.pod.Spec, p.c, c.State.Terminated.ExitCode)
	case p.runs(c.State.Running) < time.Duration(p.spec.InitialDelaySeconds)*time.Second:
		return true
	}
	if started := ptr.Deref(c.Started, false); started == (p.at.kind == Startup) {
		return true // the startup probe is done, or another probe must wait for it
	}
	if ok, said := p.ask(ctx, status); said {
		p.record(ok)
	}
	return true
}

// runs returns how long the container has run. If the clock was set back since its start, it
// returns the time since the container was first seen.
func (p *prober) runs(s *v1.ContainerStateRunning) time.Duration {
	return max(time.Since(s.StartedAt.Time), time.Since(p.seen))
}

func (p *prober) follow(c *v1.ContainerStatus) {
	if p.id == c.ContainerID {
		return
	}
	first := p.id == ""
	if !first {
		p.m.o.Results.clear(p.at.kind, podsync.RuntimeID(p.id))
	}
	p.id, p.seen, p.count, p.onHold = c.ContainerID, time.Now(), 0, false
	found := c.State.Running != nil && c.State.Running.StartedAt.Time.Before(p.m.since.Add(-before))
	if p.at.kind == Readiness && first && c.Ready {
		found = true // only an earlier agent's probe can have made it ready
	}
	switch {
	case !found:
		p.set(initial[p.at.kind])
	case p.at.kind == Startup && ptr.Deref(c.Started, false):
		p.set(podsync.Success)
	}
}

func (p *prober) set(r podsync.Result) {
	if p.m.o.Results.set(p.at.kind, podsync.RuntimeID(p.id), r) {
		p.watcher.Probed(podsync.KeyOf(p.pod), p.at.kind)
	}
}

// ask asks the container. said is false if there was no answer.
func (p *prober) ask(ctx context.Context, status *v1.PodStatus) (ok, said bool) {
	var a Answer
	var err error
	for range tries {
		if a, err = p.m.o.Ask.Ask(ctx, p.pod, status, p.c, podsync.RuntimeID(p.id), p.spec); err == nil || ctx.Err() != nil {
			break
		}
	}
	switch {
	case ctx.Err() != nil:
		return false, false
	case err != nil:
		p.m.count(p, "unknown")
		p.warn("Unhealthy", fmt.Sprintf("%s probe errored and resulted in unknown state: %v", p.at.kind, err))
		return false, false
	case a.Warning:
		p.warn("ProbeWarning", fmt.Sprintf("%s probe warning: %s", p.at.kind, a.Text))
	case !a.OK:
		p.warn("Unhealthy", fmt.Sprintf("%s probe failed: %s", p.at.kind, a.Text))
	}
	return a.OK, true
}

func (p *prober) warn(reason, message string) {
	p.m.o.Events.Event(status.ContainerRef(p.pod, p.c.Name), v1.EventTypeWarning, reason, message)
}

// record counts an answer and publishes a result if enough answers in a row agree.
func (p *prober) record(ok bool) {
	if ok {
		p.m.count(p, "successful")
	} else {
		p.m.count(p, "failed")
	}
	if p.count > 0 && p.last == ok {
		p.count++
	} else {
		p.last, p.count = ok, 1
	}
	need, result := int(p.spec.SuccessThreshold), podsync.Success
	if !ok {
		need, result = int(p.spec.FailureThreshold), podsync.Failing
	}
	if p.count < need {
		return
	}
	p.set(result)
	if p.at.kind == Startup || p.at.kind == Liveness && !ok {
		p.onHold, p.count = true, 0
	}
}
