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
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A Runtime is what a worker needs of the world. crix implements it over CRI.
type Runtime interface {
	// Observe returns what exists under key. It does not fill in Failures.
	Observe(ctx context.Context, key podsync.Key) (podsync.Have, error)
	// Act does one action for the pod, which is nil if it is not wanted any
	// more. An error of kind fault.Unavailable means that the runtime is not
	// there. interrupt ends when the pod is replaced or not wanted any more:
	// what may take for ever (a pull) ends with it, what must not be torn does
	// not.
	Act(ctx, interrupt context.Context, pod *v1.Pod, a podsync.Action) error
	// Report is told what the worker last knew of the pod. It does not block.
	Report(pod *v1.Pod, have podsync.Have)
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

	want      *v1.Pod            // guarded by pool.mu
	interrupt context.CancelFunc // guarded by pool.mu; ends the round in flight

	uid      types.UID          // the loop's own, as is failures:
	failures map[string]failure // what went wrong with the pod uid
}

// setLocked changes what is wanted and wakes the loop. Work for another pod than
// the one that is wanted now is interrupted.
func (w *worker) setLocked(pod *v1.Pod) {
	if uidOf(pod) != uidOf(w.want) {
		w.interrupt()
	}
	w.want = pod
	w.poke()
}

func uidOf(pod *v1.Pod) types.UID {
	if pod == nil {
		return ""
	}
	return pod.UID
}

func (w *worker) poke() {
	select {
	case w.wake <- struct{}{}:
	default: // it is awake already
	}
}

// begin returns what is wanted and a context that ends when that changes.
func (w *worker) begin(ctx context.Context) (*v1.Pod, context.Context) {
	w.pool.mu.Lock()
	defer w.pool.mu.Unlock()
	w.interrupt()
	interrupt, cancel := context.WithCancel(ctx)
	w.interrupt = cancel
	return w.want, interrupt
}

// run loops until ctx ends or until the pod is gone and leave agrees.
func (w *worker) run(ctx context.Context, leave func() bool) {
	unreachable := false
	for ctx.Err() == nil {
		pod, interrupt := w.begin(ctx)
		if uid := uidOf(pod); uid != w.uid {
			w.uid, w.failures = uid, map[string]failure{}
		}
		have, err := w.rt.Observe(ctx, w.key)
		if err != nil {
			if !unreachable && ctx.Err() == nil && !errors.Is(err, fault.Unavailable) {
				w.log.WarnContext(ctx, "pod could not be observed", "err", err)
			}
			unreachable = true
			w.sleep(ctx, time.Now().Add(observeRetry))
			continue
		}
		unreachable = false
		have.Failures = w.held()
		w.rt.Report(pod, have)
		plan := podsync.Compute(pod, have, time.Now())
		switch {
		case len(plan.Actions) > 0:
			w.act(ctx, interrupt, pod, plan.Actions)
		case plan.Gone && leave():
			return
		default:
			w.sleep(ctx, plan.Again)
		}
	}
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
func (w *worker) act(ctx, interrupt context.Context, pod *v1.Pod, actions []podsync.Action) {
	type result struct {
		podsync.Action
		err error
	}
	var wg sync.WaitGroup
	results := make(chan result, len(actions))
	do := func(a podsync.Action) {
		begin := time.Now()
		err := w.rt.Act(ctx, interrupt, pod, a)
		if err == nil {
			w.log.InfoContext(ctx, "pod action done", "act", a.Verb.String(), "container", a.Name, "id", a.ID, "attempt", a.Attempt, "why", a.Why, "took", time.Since(begin))
		}
		results <- result{a, err}
	}
	for _, a := range actions {
		if a.Verb == podsync.StopContainer {
			wg.Go(func() { do(a) })
			continue
		}
		if interrupt.Err() != nil {
			break // another pod is wanted: plan anew
		}
		do(a)
	}
	wg.Wait()
	close(results)
	for r := range results {
		w.book(ctx, interrupt, r.Action, r.err)
	}
}

// book remembers how an action ended.
func (w *worker) book(ctx, interrupt context.Context, a podsync.Action, err error) {
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
	f.Reason, f.Message = "Failed", err.Error()
	if r, ok := errors.AsType[Reasoner](err); ok {
		f.Reason = r.Reason()
	}
	delay, level := retryDelay(a.Verb, f.count), slog.LevelWarn
	if errors.Is(err, fault.Unavailable) {
		// Not the pod's fault; pleg tells of it, once and not for each pod.
		f.count, delay, level = last.count, observeRetry, slog.LevelDebug
	}
	f.Until = time.Now().Add(delay)
	w.failures[subject] = f
	if f.Message != last.Message {
		w.log.Log(ctx, level, "pod action failed", "act", a.Verb.String(), "container", a.Name, "id", a.ID, "reason", f.Reason, "err", err, "retry", delay)
	}
}
