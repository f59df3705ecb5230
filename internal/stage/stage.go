// Package stage records where a call spends its time, at any depth, so that one place can report
// it: in the call's log line, as metrics, as spans.
//
//	RunPodSandbox ├─ namespaces ─┤├─ cni ──────────────────┤├─ plugins ─┤
//	                               ├─ cni.portmap ─┤
//
// The stages of a call follow each other: Next ends the previous one. A stage may have parts,
// which may overlap: Enter begins one, and returns the function that ends it. For a call that is
// not recorded, both check the context and do nothing.
//
// Names are short and few, because in crispd they become keys of log lines and labels of
// metrics: a noun, and for a part the stage's noun, a dot and a noun. There they never contain
// anything that a user chose.
package stage

import (
	"context"
	"sync"
	"time"
)

// maxSpans bounds the spans of one call. Only images with very many layers reach it.
const maxSpans = 256

// A Span is one stage, or a part of one.
type Span struct {
	Name       string
	Begin, End time.Time // End is zero while it continues
	Part       bool
}

// An Observer is called when a span ends. It must not block.
type Observer func(name string, took time.Duration)

// A Log is the record of one call. All goroutines with its context may write to it.
type Log struct {
	observe Observer // may be nil

	mu      sync.Mutex
	spans   []Span           // guarded by mu
	current int              // index of the stage under way, -1 for none; guarded by mu
	counts  map[string]int64 // guarded by mu
	others  []*Log           // of shared work that this call waited for; guarded by mu
}

type key struct{}

// With returns a context, and the log that records its stages.
func With(ctx context.Context, o Observer) (context.Context, *Log) {
	l := &Log{observe: o, current: -1}
	return context.WithValue(ctx, key{}, l), l
}

// Fork is for work that outlives its caller, or that several callers wait for: it gets its own
// log, with the observer of ctx's log. A caller that waits for it calls Follow. If ctx has no
// log, Fork returns ctx itself and a nil log.
func Fork(ctx context.Context) (context.Context, *Log) {
	l, _ := ctx.Value(key{}).(*Log)
	if l == nil {
		return ctx, nil
	}
	return With(ctx, l.observe)
}

// Join returns to with the log of from, if any: for work that runs on another's lifetime.
func Join(to, from context.Context) context.Context {
	if l, _ := from.Value(key{}).(*Log); l != nil {
		return context.WithValue(to, key{}, l)
	}
	return to
}

// Follow adds the stages of work to those of ctx's call, which waits for it.
func Follow(ctx context.Context, work *Log) {
	l, _ := ctx.Value(key{}).(*Log)
	if l == nil || work == nil || l == work {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.others = append(l.others, work)
}

// Next begins the stage name in ctx's call and ends the previous one.
func Next(ctx context.Context, name string) {
	l, _ := ctx.Value(key{}).(*Log)
	if l == nil {
		return
	}
	l.endCurrent()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current = l.beginLocked(name, false)
}

// Enter begins a part of the current stage of ctx's call; end ends it.
func Enter(ctx context.Context, name string) (end func()) {
	l, _ := ctx.Value(key{}).(*Log)
	if l == nil {
		return func() {}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.beginLocked(name, true)
	return func() { l.end(i) }
}

// Count adds n to the count called name of ctx's call.
func Count(ctx context.Context, name string, n int64) {
	l, _ := ctx.Value(key{}).(*Log)
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.counts == nil {
		l.counts = make(map[string]int64)
	}
	l.counts[name] += n
}

// Stop ends the current stage.
func (l *Log) Stop() {
	if l != nil {
		l.endCurrent()
	}
}

// beginLocked adds a new span and returns its index, -1 if there are too many.
func (l *Log) beginLocked(name string, part bool) int {
	if len(l.spans) == maxSpans {
		return -1
	}
	l.spans = append(l.spans, Span{Name: name, Begin: time.Now(), Part: part})
	return len(l.spans) - 1
}

func (l *Log) endCurrent() {
	l.mu.Lock()
	i := l.current
	l.current = -1
	l.mu.Unlock()
	l.end(i)
}

func (l *Log) end(i int) {
	if i < 0 {
		return
	}
	now := time.Now()
	l.mu.Lock()
	s := &l.spans[i]
	ended := !s.End.IsZero()
	if !ended {
		s.End = now
	}
	name, took := s.Name, now.Sub(s.Begin)
	l.mu.Unlock()
	if !ended && l.observe != nil {
		l.observe(name, took)
	}
}

// Spans returns the spans recorded so far, including those of followed work, ordered by
// beginning within each.
func (l *Log) Spans() []Span {
	l.mu.Lock()
	all := append([]Span(nil), l.spans...)
	others := l.others[:len(l.others):len(l.others)]
	l.mu.Unlock()
	for _, o := range others {
		all = append(all, o.Spans()...)
	}
	return all
}

// Counted returns the count called name, including that of followed work.
func (l *Log) Counted(name string) int64 {
	l.mu.Lock()
	n := l.counts[name]
	others := l.others[:len(l.others):len(l.others)]
	l.mu.Unlock()
	for _, o := range others {
		n += o.Counted(name)
	}
	return n
}

// A Share is how much of a call's time one name took.
type Share struct {
	Name string
	Took time.Duration
}

// Shares sums the spans by name, in the order in which the names first occur. Only the time from
// begin to end counts: followed work may have begun long before, and an open span counts until
// end.
func Shares(spans []Span, begin, end time.Time) []Share {
	var list []Share
	index := make(map[string]int, len(spans))
	for _, s := range spans {
		from, to := s.Begin, s.End
		if from.Before(begin) {
			from = begin
		}
		if to.IsZero() || to.After(end) {
			to = end
		}
		if !to.After(from) {
			continue
		}
		i, ok := index[s.Name]
		if !ok {
			i = len(list)
			index[s.Name] = i
			list = append(list, Share{Name: s.Name})
		}
		list[i].Took += to.Sub(from)
	}
	return list
}

// OpenPart returns the name of the open part that began last, "" without one.
func OpenPart(spans []Span) string {
	name := ""
	var begin time.Time
	for _, s := range spans {
		if s.Part && s.End.IsZero() && !s.Begin.Before(begin) {
			name, begin = s.Name, s.Begin
		}
	}
	return name
}

// Open returns the name of the open stage, "" without one.
func Open(spans []Span) string {
	for _, s := range spans {
		if !s.Part && s.End.IsZero() {
			return s.Name
		}
	}
	return ""
}
