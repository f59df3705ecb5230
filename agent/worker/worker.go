// Package worker runs the loop of each pod: observe, compute, act. Every pod has
// one goroutine, and that goroutine is the only writer of the pod: nobody else
// creates, stops or removes anything under its Key. So there is nothing to lock
// and no two actions on one pod can race.
//
// A pod's goroutine sleeps until it is woken (something changed in the runtime
// or in the manifests) or until the plan asks for another look (back-off). It
// ends when the pod is not wanted any more and nothing of it is left.
package worker

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/poke"
)

// A Runtime is what a worker needs of the world. criruntime implements it over CRI.
type Runtime interface {
	// Observe returns what exists under key; pod is what is wanted there, or nil.
	// What is the worker's own it does not fill in.
	Observe(ctx context.Context, key podsync.Key, pod *v1.Pod) (podsync.Have, error)
	// Act does one action for the pod, which is nil if it is not wanted any
	// more. An error of kind fault.Unavailable means that the runtime is not
	// there. interrupt ends when the pod is replaced or not wanted any more:
	// what may take for ever (a pull) ends with it, what must not be torn does
	// not.
	Act(ctx, interrupt context.Context, pod *v1.Pod, a podsync.Action) error
	// Stop runs the hook of a container and stops it, within a.Grace. Its turn
	// to be stopped, after the hook, comes when turn is closed. ctx also ends
	// when the container is to end sooner than a says: another Stop follows.
	Stop(ctx context.Context, turn <-chan struct{}, pod *v1.Pod, a podsync.Action) error
	// Report takes what the worker knows of the pod and returns the pod's status;
	// nil if pod is nil. It does not block.
	Report(pod *v1.Pod, have podsync.Have) *v1.PodStatus
	// Ended is called when nothing is left of a pod that was being deleted, without
	// locks.
	Ended(key podsync.Key, uid types.UID)
}

// Reasoner is an error that knows the CamelCase reason under which a container
// waits because of it.
type Reasoner interface {
	error
	Reason() string
}

// observeRetry is how long a worker waits for a runtime that does not answer.
// Nothing is lost meanwhile: containers need neither the agent nor crispd.
const observeRetry = time.Second

type worker struct {
	key  podsync.Key
	pool *Pool
	rt   Runtime
	log  *slog.Logger
	wake chan struct{} // of capacity 1

	want      *v1.Pod                   // guarded by pool.mu
	verdict   *podsync.Verdict          // of want; guarded by pool.mu
	forget    bool                      // failures are to be forgotten; guarded by pool.mu
	restart   map[string]*time.Duration // see podsync.Have.Restart; guarded by pool.mu
	interrupt context.CancelFunc        // guarded by pool.mu; ends the round in flight
	shorten   context.CancelFunc        // guarded by pool.mu; ends the stops in flight

	// The rest is the loop's own.
	uid       types.UID
	failures  map[string]failure // what went wrong with the pod uid
	restarted map[string]bool    // containers of it that were stopped to be started again
}

// setLocked changes what is wanted and wakes the loop. Work for a pod that is not
// wanted any more is interrupted, and stops that now have less time are too.
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
	}
	w.want = pod
	w.poke()
}

// failLocked ends the pod for good.
func (w *worker) failLocked(v podsync.Verdict) {
	w.verdict = &v
	w.interrupt()
	if v.Grace != nil && *v.Grace < grace(w.want) {
		w.shorten()
	}
	w.poke()
}

// grace is how many seconds the containers of a pod have to end.
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

// A round is what the loop goes by once.
type round struct {
	pod       *v1.Pod
	restart   map[string]*time.Duration
	verdict   *podsync.Verdict
	interrupt context.Context // ends when pod is not wanted so any more
	stopping  context.Context // ends when its containers are to end sooner
}

func (w *worker) begin(ctx context.Context) round {
	w.pool.mu.Lock()
	defer w.pool.mu.Unlock()
	w.interrupt()
	w.shorten()
	r := round{pod: w.want, verdict: w.verdict, restart: maps.Clone(w.restart)}
	r.interrupt, w.interrupt = context.WithCancel(ctx)
	r.stopping, w.shorten = context.WithCancel(ctx)
	if uid := uidOf(r.pod); uid != w.uid {
		w.uid, w.failures, w.restarted, w.restart = uid, map[string]failure{}, map[string]bool{}, nil
	}
	if w.forget {
		maps.DeleteFunc(w.failures, func(_ string, f failure) bool { return !f.lasting })
		w.forget = false
	}
	return r
}

// run loops until ctx ends or until the pod is gone and leave agrees.
func (w *worker) run(ctx context.Context, leave func(r round) bool) {
	unreachable := false
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
		have.Status = w.rt.Report(r.pod, have)
		plan := podsync.Compute(r.pod, have, time.Now())
		switch {
		case len(plan.Actions) > 0:
			w.act(ctx, r, plan.Actions)
		case plan.Gone && leave(r):
			return
		default:
			w.sleep(ctx, earliest(plan.Again, w.pullBackoffAt()))
		}
	}
}

// earliest returns the earlier of two times, of which zero is never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// sleep returns when the worker is woken or at the time until; zero is never.
func (w *worker) sleep(ctx context.Context, until time.Time) {
	var alarm <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		alarm = t.C
	}
	select {
	case <-ctx.Done():
	case <-w.wake:
	case <-alarm:
	}
}

// act does the actions of one plan. Containers stop side by side, so that a pod
// takes the longest grace period to end and not their sum; all else goes in turn.
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
					err = nil // it is planned anew
				}
				results <- result{a, err}
			})
			continue
		}
		if r.interrupt.Err() != nil {
			break // something else is wanted: plan anew
		}
		begin := time.Now()
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

// served forgets that a container was asked to be restarted.
func (w *worker) served(id string) {
	w.pool.mu.Lock()
	defer w.pool.mu.Unlock()
	delete(w.restart, id)
}

// recordResult remembers how an action ended.
func (w *worker) recordResult(ctx, interrupt context.Context, a podsync.Action, err error) {
	subject := a.Subject()
	if err == nil {
		delete(w.failures, subject)
		return
	}
	if interrupt.Err() != nil {
		return // our own doing
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
		// Not the pod's fault; pleg reports it once, not for each pod.
		f.count, delay, level = last.count, observeRetry, slog.LevelDebug
	}
	f.Until = f.At.Add(delay)
	w.failures[subject] = f
	if f.Message != last.Message {
		w.log.Log(ctx, level, "pod action failed", "act", a.Verb.String(), "container", a.Name, "id", a.ID, "reason", f.Reason, "err", err, "retry", delay)
	}
}
