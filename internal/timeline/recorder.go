package timeline

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/internal/stage"
)

// Bounds of a Recorder. Of a pod's stages it keeps the first, which are its start, and the last,
// which are its current work.
const (
	maxPods  = 512
	maxFirst = 64
	maxLast  = 32
	maxText  = 1024 // bytes of a detail or an error
)

// A Recorder records the stages of the pods that had stages last. The zero value is ready.
type Recorder struct {
	mu    sync.Mutex
	pods  map[string]*record // by UID; guarded by mu
	order []string           // UIDs, most recently written last; guarded by mu
}

// record is a Recorder's data about one pod.
type record struct {
	pod     Pod
	list    []*Open
	changes uint64 // number of stages that began, ended or were refined
	added   uint64 // number of stages, including those no longer in list
	kept    kept
}

// An Open is a stage in a Recorder, which may be under way.
type Open struct {
	recorder *Recorder
	record   *record
	stage    Stage      // guarded by recorder.mu
	log      *stage.Log // its spans are the stage's parts while it is open; nil = none; guarded by recorder.mu
	flat     bool       // its spans represent it
	wait     bool       // begun by Wait
	number   uint64     // among the record's stages, from 1
	changed  uint64     // the record's changes at its last change; guarded by recorder.mu
}

// changedLocked counts a change of the stage.
func (o *Open) changedLocked() {
	o.record.changes++
	o.changed = o.record.changes
}

// Begin begins a stage, whose parts are the spans of log. log may be nil.
func (r *Recorder) Begin(pod Pod, s Stage, log *stage.Log) *Open { return r.begin(pod, s, log, false) }

// BeginFlat begins an action whose spans are themselves stages of the pod, of s's container.
func (r *Recorder) BeginFlat(pod Pod, s Stage, log *stage.Log) *Open {
	return r.begin(pod, s, log, true)
}

func (r *Recorder) begin(pod Pod, s Stage, log *stage.Log, flat bool) *Open {
	o := &Open{recorder: r, stage: s, log: log, flat: flat}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addLocked(pod, o)
	return o
}

func (r *Recorder) addLocked(pod Pod, o *Open) {
	o.stage.clip()
	if o.stage.Begin.IsZero() {
		o.stage.Begin = time.Now()
	}
	p := r.recordLocked(pod)
	p.added++
	o.record, o.number = p, p.added
	o.changedLocked()
	p.list = append(p.list, o)
	if len(p.list) > maxFirst+maxLast {
		p.list = slices.Delete(p.list, maxFirst, maxFirst+1)
	}
}

// Wait sets what the pod waits for from now on, besides the work for it: a stage begins for each
// new entry of the list, and ends for each that is no longer there.
func (r *Recorder) Wait(pod Pod, list []Stage) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	same := func(a, b Stage) bool { return a.Name == b.Name && a.Container == b.Container && a.Attempt == b.Attempt }
	going := make([]bool, len(list))
	if p := r.pods[pod.UID]; p != nil {
		for _, o := range p.list {
			if !o.wait || !o.stage.End.IsZero() {
				continue
			}
			i := slices.IndexFunc(list, func(s Stage) bool { return same(s, o.stage) })
			if i < 0 {
				o.stage.End = now
				o.changedLocked()
				continue
			}
			going[i], o.stage.Detail = true, list[i].Detail
			o.stage.clip()
		}
	}
	for i, s := range list {
		if !going[i] {
			s.Begin = now
			r.addLocked(pod, &Open{recorder: r, stage: s, wait: true})
		}
	}
}

// EndWait ends a wait of the pod, if it is open.
func (r *Recorder) EndWait(uid, name, container string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pods[uid]
	if p == nil {
		return
	}
	for _, o := range p.list {
		if o.wait && o.stage.End.IsZero() && o.stage.Name == name && o.stage.Container == container {
			o.stage.End = time.Now()
			o.changedLocked()
		}
	}
}

// recordLocked returns the record of a pod, created or moved to the end of the order.
func (r *Recorder) recordLocked(pod Pod) *record {
	p := r.pods[pod.UID]
	if p == nil {
		if r.pods == nil {
			r.pods = make(map[string]*record)
		}
		p = &record{pod: pod}
		r.pods[pod.UID] = p
	} else if i := slices.Index(r.order, pod.UID); i >= 0 {
		r.order = slices.Delete(r.order, i, i+1)
	}
	r.order = append(r.order, pod.UID)
	if len(r.order) > maxPods {
		delete(r.pods, r.order[0])
		r.order = r.order[1:]
	}
	return p
}

// Repeat adds a stage that has ended: if the last one of its name and container has ended too,
// that one is extended to cover both. A container is probed very often.
func (r *Recorder) Repeat(pod Pod, s Stage) {
	r.mu.Lock()
	if p := r.pods[pod.UID]; p != nil {
		for _, o := range slices.Backward(p.list) {
			if last := &o.stage; last.Name == s.Name && last.Container == s.Container && last.Attempt == s.Attempt && !last.End.IsZero() {
				o.changedLocked()
				last.Times = max(last.Times, 1) + 1
				last.End, last.Detail, last.Err = s.End, s.Detail, s.Err
				last.clip()
				r.mu.Unlock()
				return
			}
		}
	}
	r.mu.Unlock()
	r.Begin(pod, s, nil)
}

// End ends the stage. It may be called more than once; the first call counts, and on a nil Open
// it does nothing.
func (o *Open) End(detail, err string) {
	if o == nil {
		return
	}
	log := o.end(detail, err)
	if log == nil {
		return
	}
	done := parts(log.Spans())
	o.recorder.mu.Lock()
	defer o.recorder.mu.Unlock()
	for i := range done { // parts still open end with the stage
		done[i].close(o.stage.End)
	}
	o.stage.Parts, o.log = done, nil
	o.changedLocked()
}

// end ends the stage and returns the log with its parts; nil = none.
func (o *Open) end(detail, err string) *stage.Log {
	o.recorder.mu.Lock()
	defer o.recorder.mu.Unlock()
	if !o.stage.End.IsZero() {
		return nil
	}
	o.stage.End = time.Now()
	o.changedLocked()
	if detail != "" {
		o.stage.Detail = detail
	}
	o.stage.Err = err
	o.stage.clip()
	return o.log
}

// clip bounds text from others.
func (s *Stage) clip() {
	for _, text := range []*string{&s.Detail, &s.Err} {
		if len(*text) > maxText {
			*text = strings.ToValidUTF8((*text)[:maxText-len("…")], "") + "…"
		}
	}
}

func (s *Stage) close(at time.Time) {
	if s.End.IsZero() {
		s.End = at
	}
	for i := range s.Parts {
		s.Parts[i].close(at)
	}
}

// Of returns the stages of the pod with this UID, ordered by beginning.
func (r *Recorder) Of(uid string) []Stage {
	r.mu.Lock()
	var list []Open
	if p := r.pods[uid]; p != nil {
		list = p.copyLocked()
	}
	r.mu.Unlock()
	return stagesOf(list)
}

// copyLocked returns a copy of the record's stages.
func (rec *record) copyLocked() []Open {
	list := make([]Open, len(rec.list))
	for i, o := range rec.list {
		list[i] = *o
	}
	return list
}

func stagesOf(list []Open) []Stage {
	var stages []Stage
	for _, o := range list {
		stages = append(stages, o.stages()...)
	}
	Sort(stages)
	return stages
}

// stages returns the stages that o represents.
func (o Open) stages() []Stage {
	s := o.stage
	if o.log != nil {
		s.Parts = parts(o.log.Spans())
	}
	if !o.flat {
		return []Stage{s}
	}
	list := slices.Clone(s.Parts)
	for i := range list {
		list[i].Container, list[i].Attempt = s.Container, s.Attempt
	}
	if n := len(list); n > 0 {
		list[n-1].Err = s.Err
		if list[n-1].Detail == "" {
			list[n-1].Detail = s.Detail
		}
	}
	return list
}

// Pods returns the pods that have stages.
func (r *Recorder) Pods() []Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]Pod, 0, len(r.order))
	for _, uid := range r.order {
		list = append(list, r.pods[uid].pod)
	}
	return list
}

// Going returns the pods that have open stages, each with only these.
func (r *Recorder) Going() map[Pod][]Stage {
	r.mu.Lock()
	open := make(map[Pod][]Open)
	for _, p := range r.pods {
		list := slices.DeleteFunc(p.copyLocked(), func(o Open) bool { return !o.stage.End.IsZero() })
		if len(list) > 0 {
			open[p.pod] = list
		}
	}
	r.mu.Unlock()
	going := make(map[Pod][]Stage, len(open))
	for pod, list := range open {
		going[pod] = stagesOf(list)
	}
	return going
}

// Forget drops everything about a pod.
func (r *Recorder) Forget(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pods, uid)
	r.order = slices.DeleteFunc(r.order, func(other string) bool { return other == uid })
}
