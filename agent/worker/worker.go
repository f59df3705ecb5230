// Package worker runs the loop of each pod: observe, compute, act. Every pod has one goroutine,
// the only one that creates, stops or removes anything under its Key. So nothing needs a lock,
// and no two actions on one pod can race.
//
// A pod's goroutine sleeps until a change in the runtime or the manifests wakes it, or until the
// plan's time to compute again (back-off). It ends when the pod is no longer wanted and nothing
// of it is left.
//
// What is done to pods on request is here too: Workers stop, start, restart and drain them, and
// Stops record which pods must stay stopped.
package worker

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"reflect"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/periodic"
	"github.com/crisp-cri/crisp/internal/poke"
)

// A Runtime does the work of a worker. criruntime implements it with CRI.
type Runtime interface {
	// Observe returns the existing state under key; pod is the wanted one, or nil. It leaves out
	// the worker's own state: Failures, Restarted, Restart, Verdict and Status.
	Observe(ctx context.Context, key podsync.Key, pod *v1.Pod) (podsync.Have, error)
	// Act does one action for the pod, which is nil if none is wanted any more. An error
	// of kind fault.Unavailable means that the runtime does not answer. interrupt ends when
	// the pod is replaced or no longer wanted: operations that may take forever (a pull)
	// end with it, those that must not be left half done do not.
	Act(ctx, interrupt context.Context, pod *v1.Pod, a podsync.Action) error
	// Stop runs the preStop hook of a container and stops the container, within a.Grace. After
	// the hook it waits until turn is closed. ctx also ends when the container must end sooner
	// than a says: another Stop follows.
	Stop(ctx context.Context, turn <-chan struct{}, pod *v1.Pod, a podsync.Action) error
	// Report computes, publishes and returns the pod's status; nil if pod is nil. It does
	// not block.
	Report(pod *v1.Pod, have podsync.Have) *v1.PodStatus
	// Ended is called when nothing is left of a pod that was being deleted. No lock is held.
	Ended(key podsync.Key, uid types.UID)
}

// Reasoner is an error with the CamelCase reason that the status shows for a container that
// waits because of it.
type Reasoner interface {
	error
	Reason() string
}

// observeRetry is the pause before a worker calls a runtime again that did not answer. Nothing
// is lost meanwhile: containers need neither the agent nor crispd.
const observeRetry = time.Second

type worker struct {
	key  podsync.Key
	pool *Pool
	rt   Runtime
	log  *slog.Logger
	wake chan struct{} // of capacity 1

	want      *v1.Pod                   // guarded by pool.mu
	verdict   *podsync.Verdict          // of want; guarded by pool.mu
	forget    bool                      // failures that are not lasting must be forgotten; guarded by pool.mu
	restart   map[string]*time.Duration // see podsync.Have.Restart; guarded by pool.mu
	starting  string                    // the container that is being started, "" for none; guarded by pool.mu
	interrupt context.CancelFunc        // ends the round in progress; guarded by pool.mu
	shorten   context.CancelFunc        // ends the stops in progress; guarded by pool.mu

	// Only the loop uses the others.
	pod       *v1.Pod            // of the last round
	failures  map[string]failure // of the pod, by subject
	restarted map[string]bool    // containers of it that were stopped in order to restart, by ID
}

// setLocked changes the wanted pod and wakes the loop. It interrupts work for a pod or an image
// that is no longer wanted, and stops that now have less time.
func (w *worker) setLocked(pod *v1.Pod) {
	if uidOf(pod) != uidOf(w.want) {
		w.interrupt()
		w.verdict = nil
	} else if pod != nil && pod.DeletionTimestamp != nil {
		if w.want.DeletionTimestamp == nil {
			w.interrupt()
		}
		if grace(pod) < grace(w.want) {
			w.shorten()
		}
	} else if pod != nil && w.starting != "" && !sameImage(w.want, pod, w.starting) {
		w.interrupt() // its image may be impossible to pull
	}
	w.want = pod
	w.poke()
}

func sameImage(a, b *v1.Pod, container string) bool {
	image := func(pod *v1.Pod) string {
		return ptr.Deref(podsync.ContainerOf(&pod.Spec, container), v1.Container{}).Image
	}
	return image(a) == image(b)
}

func (w *worker) failLocked(v podsync.Verdict) {
	w.verdict = &v
	w.interrupt()
	if v.Grace != nil && *v.Grace < grace(w.want) {
		w.shorten()
	}
	w.poke()
}

// grace returns the grace period of a pod's containers, in seconds.
func grace(pod *v1.Pod) int64 {
	switch {
	case pod.DeletionGracePeriodSeconds != nil:
		return *pod.DeletionGracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		return *pod.Spec.TerminationGracePeriodSeconds
	}
	return v1.DefaultTerminationGracePeriodSeconds
}

func uidOf(pod *v1.Pod) types.UID {
	if pod == nil {
		return ""
	}
	return pod.UID
}

func (w *worker) poke() { poke.Wake(w.wake) }

type round struct {
	pod       *v1.Pod
	restart   map[string]*time.Duration
	verdict   *podsync.Verdict
	interrupt context.Context // ends when another pod, or another end of this one, is wanted
	stopping  context.Context // ends when its containers have less time to end
}

func (w *worker) begin(ctx context.Context) round {
	w.pool.mu.Lock()
	defer w.pool.mu.Unlock()
	w.interrupt()
	w.shorten()
	r := round{pod: w.want, verdict: w.verdict, restart: maps.Clone(w.restart)}
	r.interrupt, w.interrupt = context.WithCancel(ctx)
	r.stopping, w.shorten = context.WithCancel(ctx)
	if uidOf(r.pod) != uidOf(w.pod) {
		w.failures, w.restarted, w.restart = map[string]failure{}, map[string]bool{}, nil
	} else if r.pod != w.pod {
		for c := range podsync.Containers(&r.pod.Spec) {
			if !sameImage(w.pod, r.pod, c.Name) {
				delete(w.failures, podsync.ContainerSubject(c.Name)) // they were of the old image
			}
		}
	}
	w.pod, w.starting = r.pod, ""
	if w.forget {
		maps.DeleteFunc(w.failures, func(_ string, f failure) bool { return !f.lasting })
		w.forget = false
	}
	return r
}

// end releases the contexts of the last round, which the pool's context would hold.
func (w *worker) end() {
	w.pool.mu.Lock()
	defer w.pool.mu.Unlock()
	w.interrupt()
	w.shorten()
}

func (w *worker) run(ctx context.Context, leave func(r round) bool) {
	defer w.end()
	unreachable := false
	var last []podsync.Action
	for ctx.Err() == nil {
		r := w.begin(ctx)
		have, err := w.rt.Observe(ctx, w.key, r.pod)
		if err != nil {
			if !unreachable && ctx.Err() == nil && !errors.Is(err, fault.Unavailable) {
				w.log.WarnContext(ctx, "pod could not be observed", "err", err)
			}
			unreachable = true
			w.sleep(ctx, time.Now().Add(observeRetry))
			continue
		}
		unreachable = false
		have.Failures, have.Restarted, have.Restart, have.Verdict = w.podFailures(), w.restarted, r.restart, r.verdict
		now := time.Now()
		have.Status = w.rt.Report(r.pod, have)
		plan := podsync.Compute(r.pod, have, time.Now())
		same := reflect.DeepEqual(plan.Actions, last)
		last = plan.Actions
		switch {
		case len(plan.Actions) > 0:
			if same { // whatever the runtime answered, it has not done them
				w.sleep(ctx, now.Add(observeRetry))
			}
			w.act(ctx, r, plan.Actions)
		case plan.Gone && leave(r):
			return
		default:
			w.sleep(ctx, podsync.Earliest(plan.Again, w.pullBackoffAt(now)))
		}
	}
}

// sleep returns when the worker is woken, at the time until, or earlier; zero is never.
func (w *worker) sleep(ctx context.Context, until time.Time) {
	var alarm <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(periodic.Until(until))
		defer t.Stop()
		alarm = t.C
	}
	select {
	case <-ctx.Done():
	case <-w.wake:
	case <-alarm:
	}
}

// act does the actions of one plan. It stops containers concurrently, so that the end of a pod
// takes the longest of their grace periods and not the sum; it does everything else in order.
func (w *worker) act(ctx context.Context, r round, actions []podsync.Action) {
	var wg sync.WaitGroup
	type result struct {
		podsync.Action
		err error
	}
	results := make(chan result, len(actions))
	stops := newOrder(actions)
	for _, a := range actions {
		if a.Verb == podsync.StopContainer {
			wg.Go(func() {
				defer stops.ended(a.ID)
				err := w.rt.Stop(r.stopping, stops.turn(r.stopping, a), r.pod, a)
				if r.stopping.Err() != nil && ctx.Err() == nil {
					err = nil // another Stop is planned
				}
				results <- result{a, err}
			})
			continue
		}
		if r.interrupt.Err() != nil {
			break // the wanted state has changed: plan again
		}
		begin := time.Now()
		w.start(r, a)
		err := w.rt.Act(ctx, r.interrupt, r.pod, a)
		if err == nil {
			w.log.InfoContext(ctx, "pod action done", "act", a.Verb.String(), "container", a.Name, "id", a.ID, "attempt", a.Attempt, "why", a.Why, "took", time.Since(begin))
		}
		results <- result{a, err}
	}
	wg.Wait()
	close(results)
	for res := range results {
		if res.err == nil && res.Verb == podsync.StopContainer {
			w.log.InfoContext(ctx, "pod action done", "act", res.Verb.String(), "container", res.Name, "id", res.ID, "why", res.Why)
			if res.Restart {
				w.restarted[res.ID] = true
				w.served(res.ID)
			}
		}
		w.recordResult(ctx, r.interrupt, res.Action, res.err)
	}
}

// start notes that an action begins, for setLocked. If the wanted pod already has another image
// for the container to start, it interrupts the round at once.
func (w *worker) start(r round, a podsync.Action) {
	w.pool.mu.Lock()
	defer w.pool.mu.Unlock()
	w.starting = ""
	if a.Verb != podsync.StartContainer {
		return
	}
	w.starting = a.Name
	if uidOf(w.want) == uidOf(r.pod) && !sameImage(w.want, r.pod, a.Name) {
		w.interrupt()
	}
}

func (w *worker) served(id string) {
	w.pool.mu.Lock()
	defer w.pool.mu.Unlock()
	delete(w.restart, id)
}

func (w *worker) recordResult(ctx, interrupt context.Context, a podsync.Action, err error) {
	subject := a.Subject()
	if err == nil {
		delete(w.failures, subject)
		return
	}
	if interrupt.Err() != nil {
		return // it was interrupted
	}
	last := w.failures[subject]
	f := failure{count: last.count + 1}
	f.At = time.Now()
	f.Reason, f.Message = "Failed", err.Error()
	if r, ok := errors.AsType[Reasoner](err); ok {
		f.Reason = r.Reason()
	}
	delay, level := retryDelay(a.Verb, &f), slog.LevelWarn
	if errors.Is(err, fault.Unavailable) {
		// It is no failure of the pod. pleg logs it once, not for each pod.
		f.count, delay, level = last.count, observeRetry, slog.LevelDebug
	}
	f.Until = f.At.Add(delay)
	w.failures[subject] = f
	if f.Message != last.Message {
		w.log.Log(ctx, level, "pod action failed", "act", a.Verb.String(), "container", a.Name, "id", a.ID, "reason", f.Reason, "err", err, "retry", delay)
	}
}

// An order lets containers that are stopped concurrently wait for each other.
type order map[string]chan struct{} // ID → closed when its stop has returned

func newOrder(actions []podsync.Action) order {
	o := order{}
	for _, a := range actions {
		if a.Verb == podsync.StopContainer {
			o[a.ID] = make(chan struct{})
		}
	}
	return o
}

func (o order) ended(id string) { close(o[id]) }

// turn returns a channel that is closed when the stops that must precede a have returned, or ctx
// has ended. It does not wait for a container whose stop is not among the actions, since it is
// held back after a failure.
func (o order) turn(ctx context.Context, a podsync.Action) <-chan struct{} {
	turn := make(chan struct{})
	go func() {
		defer close(turn)
		for _, id := range a.After {
			if before, ok := o[id]; ok {
				select {
				case <-before:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return turn
}
