// Package startup keeps timelines of pods' starts, as far as the agent knows them: when each
// pod was first seen, what the agent did for it and how long that took, and what it waited
// for. The runtime has its own timeline of what it did; internal/timeline joins the two.
//
//	seen ┤ queue ├┤observe├┤ volumes, sandbox, … (actions) ├┤observe├┤ … ├┤ readiness probe ├ ready
//
// A timeline is in memory, and in a file among the pod's others (Save), so that the next agent
// has it too; a power cut may take the last changes. With a collector (Keeper.Traces) it also
// becomes spans of the pod's trace.
package startup

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/apiserver/why"
	"github.com/crisp-cri/crisp/internal/podtrace"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/crisp-cri/crisp/internal/timeline"
	"github.com/crisp-cri/crisp/internal/waterfall"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// maxPods is the number of pods that have a timeline: those seen last.
const maxPods = 512

// A Report is the timeline of one pod.
type Report struct {
	Pod    timeline.Pod     `json:"pod"`
	Seen   time.Time        `json:"seen"`
	Ready  time.Time        `json:"ready,omitzero"` // when it was first ready; zero if never
	Stages []timeline.Stage `json:"stages"`
}

// A Keeper keeps the timelines. The zero value is ready for use. It is safe for concurrent use.
type Keeper struct {
	Traces *podtrace.Sender // nil if there is no collector

	recorder timeline.Recorder

	mu    sync.Mutex
	pods  map[types.UID]*record // guarded by mu
	order []types.UID           // in the order in which pods were seen; guarded by mu
}

type record struct {
	pod         timeline.Pod
	seen, ready time.Time
	observed    int    // how often the pod was observed
	attempt     uint32 // that of its last sandbox
	acted       bool   // whether this agent did something for it
	sent        bool   // whether its spans were sent
	saved       uint64 // the number of changes of its stages that are on disk
	savedReady  bool   // whether it is on disk that the pod is ready
}

// Seen records that a pod is wanted now. Only the first call for a pod counts.
func (k *Keeper) Seen(pod *v1.Pod) {
	id := timeline.Pod{UID: string(pod.UID), Namespace: pod.Namespace, Name: pod.Name}
	if k.add(pod.UID, &record{pod: id, seen: time.Now()}) {
		k.recorder.Wait(id, []timeline.Stage{{Name: why.Queue}})
	}
}

// add adds a record, and drops the oldest if there are too many. It returns false if the pod
// has one already.
func (k *Keeper) add(uid types.UID, r *record) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pods[uid] != nil {
		return false
	}
	if k.pods == nil {
		k.pods = map[types.UID]*record{}
	}
	k.pods[uid] = r
	k.order = append(k.order, uid)
	if len(k.order) > maxPods {
		delete(k.pods, k.order[0])
		k.order = k.order[1:]
	}
	return true
}

// Keep drops all pods but those that there returns, and sends the spans of those that it drops. A
// pod that is Seen meanwhile stays.
func (k *Keeper) Keep(there func() map[types.UID]bool) {
	k.mu.Lock()
	known := slices.Clone(k.order)
	k.mu.Unlock()
	now := there()
	gone := slices.DeleteFunc(known, func(uid types.UID) bool { return now[uid] })
	for _, uid := range gone {
		k.send(uid)
		k.recorder.Forget(string(uid))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.order = slices.DeleteFunc(k.order, func(uid types.UID) bool { return slices.Contains(gone, uid) })
	for _, uid := range gone {
		delete(k.pods, uid)
	}
}

// of returns a copy of a pod's record; ok reports whether there is one.
func (k *Keeper) of(pod *v1.Pod) (r record, ok bool) {
	if pod == nil {
		return record{}, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.pods[pod.UID]; p != nil {
		return *p, true
	}
	return record{}, false
}

// Observe records that a worker observes its pod: it calls the runtime, or computes the pod's
// status. done records the end. Once the pod is ready nothing is recorded.
func (k *Keeper) Observe(pod *v1.Pod) (done func()) {
	r, ok := k.of(pod)
	if !ok || !r.ready.IsZero() {
		return func() {}
	}
	k.recorder.EndWait(r.pod.UID, why.Queue, "")
	begin := time.Now()
	return func() {
		if k.countObserved(pod.UID) <= maxObserved || time.Since(begin) > slowObserve {
			k.recorder.Begin(r.pod, timeline.Stage{Name: why.Observe, Begin: begin}, nil).End("", "")
		}
	}
}

// For a pod that waits for a long time, only its first maxObserved observations are kept, and
// later ones that took longer than slowObserve.
const (
	maxObserved = 20
	slowObserve = 50 * time.Millisecond
)

func (k *Keeper) countObserved(uid types.UID) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.pods[uid]
	if p == nil {
		return 0
	}
	p.observed++
	return p.observed
}

// Act records that a worker begins an action. It returns the contexts for the action, with which
// stages are recorded for the pod, and a function to call with the action's error when it ends.
func (k *Keeper) Act(ctx, interrupt context.Context, pod *v1.Pod, a podsync.Action) (context.Context, context.Context, func(error)) {
	r, ok := k.of(pod)
	if !ok || a.Verb != podsync.RunSandbox && a.Verb != podsync.StartContainer {
		return ctx, interrupt, func(error) {}
	}
	k.began(pod.UID, a)
	k.recorder.EndWait(r.pod.UID, why.BackOff, a.Name) // the action may have been held back
	ctx, log := stage.With(ctx, nil)
	open := k.recorder.BeginFlat(r.pod, timeline.Stage{Name: a.Verb.String(), Container: a.Name, Attempt: a.Attempt}, log)
	return ctx, stage.Join(interrupt, ctx), func(err error) {
		log.Stop()
		text := ""
		if err != nil {
			text = err.Error()
		}
		open.End("", text)
	}
}

// began records that the agent starts to act for a pod.
func (k *Keeper) began(uid types.UID, a podsync.Action) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.pods[uid]
	if p == nil {
		return
	}
	p.acted = true
	if a.Verb == podsync.RunSandbox {
		p.attempt = a.Attempt
	}
}

// Status records what a pod waits for, according to its status and the failures of its actions,
// and when it is first ready.
func (k *Keeper) Status(pod *v1.Pod, s *v1.PodStatus, failures map[string]podsync.Failure) {
	r, ok := k.of(pod)
	if !ok {
		return
	}
	var waits []timeline.Stage
	for _, w := range why.Waits(pod, s, failures) {
		waits = append(waits, timeline.Stage{Name: w.Name, Container: w.Container, Attempt: w.Attempt, Detail: w.Detail})
	}
	k.recorder.Wait(r.pod, waits)
	if _, ready := podsync.Ready(s); ready && r.ready.IsZero() {
		k.mu.Lock()
		if p := k.pods[pod.UID]; p != nil && p.ready.IsZero() {
			p.ready = time.Now()
		}
		k.mu.Unlock()
		k.send(pod.UID)
	}
}

// Of returns the timeline of a pod; ok reports whether there is one.
func (k *Keeper) Of(uid types.UID) (r Report, ok bool) {
	k.mu.Lock()
	rec := k.pods[uid]
	if rec != nil {
		r = Report{Pod: rec.pod, Seen: rec.seen, Ready: rec.ready}
	}
	k.mu.Unlock()
	if rec == nil {
		return Report{}, false
	}
	r.Stages = k.recorder.Of(string(uid))
	return r, true
}

// All returns the timelines of all pods, in the order in which they were seen.
func (k *Keeper) All() []Report {
	k.mu.Lock()
	order := slices.Clone(k.order)
	k.mu.Unlock()
	list := []Report{}
	for _, uid := range order {
		if r, ok := k.Of(uid); ok {
			list = append(list, r)
		}
	}
	return list
}

// Covered returns the part of the time until the pod was ready, or until now, that its stages
// account for, from 0 to 1.
func (r Report) Covered(now time.Time) float64 {
	return waterfall.Cover(r.Stages, r.Seen, r.Until(now))
}

// Until returns when the pod was ready, or now if it has not been.
func (r Report) Until(now time.Time) time.Time {
	if r.Ready.IsZero() {
		return now
	}
	return r.Ready
}

// Save writes a pod's record to the file at path, for the next agent, if it has changed since it
// was last saved.
func (k *Keeper) Save(pod *v1.Pod, path string) error {
	r, ok := k.of(pod)
	if changes := k.recorder.Changes(string(pod.UID)); !ok || r.saved == changes && r.savedReady == !r.ready.IsZero() {
		return nil
	}
	stages, changes := k.recorder.Save(string(pod.UID))
	k.mu.Lock()
	if p := k.pods[pod.UID]; p != nil { // even if the write fails: the next change tries again
		p.saved, p.savedReady = changes, !r.ready.IsZero()
	}
	k.mu.Unlock()
	return timeline.WriteFile(path, timeline.Saved{Pod: r.pod, Seen: r.seen, Ready: r.ready, Attempt: r.attempt, Stages: stages})
}

// Restore takes in the record of a pod that an earlier agent has saved. A file that cannot be
// read is ignored.
func (k *Keeper) Restore(uid types.UID, path string) {
	s, err := timeline.ReadFile(path)
	if err != nil || s.Pod.UID != string(uid) || s.Seen.IsZero() {
		return
	}
	if k.add(uid, &record{pod: s.Pod, seen: s.Seen, ready: s.Ready, attempt: s.Attempt, acted: true, observed: maxObserved}) {
		k.recorder.Restore(s.Pod, s.Stages)
	}
}
