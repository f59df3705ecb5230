// Package stage notes what a call spends its time on, wherever below it that is, so that one
// place can report it: in the call's log line, as metrics, as spans.
//
//	RunPodSandbox ├─ namespaces ─┤├─ cni ──────────────────┤├─ plugins ─┤
//	                               ├─ cni.portmap ─┤
//
// The stages of a call follow each other: Next ends the one before. Within a stage there may be
// parts, also side by side: Enter begins one, and returns the function that ends it. Where no
// call is recorded, both cost a look into the context and do nothing.
//
// Names are short and few, for they become keys of log lines and labels of metrics:
// a noun, and for parts the stage's noun, a dot and what part. They never hold what
// a user chose.
package stage

import (
	"context"
	"sync"
	"time"
)

// maxSpans bounds what is kept of one call. Nothing has so many but an image of very
// many layers.
const maxSpans = 256

// A Span is one stage, or a part of one.
type Span struct {
	Name       string
	Begin, End time.Time // End is zero while it goes on
	Part       bool
}

// An Observer hears of each span when it ends. It must not block.
type Observer func(name string, took time.Duration)

// A Log is what is recorded of one call. All goroutines that have its context may
// write to it.
type Log struct {
	observe Observer // may be nil

	mu      sync.Mutex
	spans   []Span           // guarded by mu
	current int              // index of the stage under way, -1 for none; guarded by mu
	counts  map[string]int64 // guarded by mu
	others  []*Log           // whose work this call waited for; guarded by mu
}

type key struct{}

// With returns a context whose stages go to the log that it returns too.
func With(ctx context.Context, o Observer) (context.Context, *Log) {
	l := &Log{observe: o, current: -1}
	return context.WithValue(ctx, key{}, l), l
}

// Fork is for work that outlives its caller, or that several callers wait for: it gets its own
// log, with the observer of the one of ctx. A caller that waits for it calls Follow. The log is
// nil, and ctx as it was, if ctx has none.
func Fork(ctx context.Context) (context.Context, *Log) {
	l, _ := ctx.Value(key{}).(*Log)
	if l == nil {
		return ctx, nil
	}
	return With(ctx, l.observe)
}

// Follow makes the stages of work that the call of ctx waits for its own.
func Follow(ctx context.Context, work *Log) {
	l, _ := ctx.Value(key{}).(*Log)
	if l == nil || work == nil || l == work {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.others = append(l.others, work)
}

// Next says that the call of ctx enters the stage name, which ends the one before.
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

// Enter begins a part of the stage that the call of ctx is in. The function that it
// returns ends it.
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

// Count adds n to what the call of ctx counts under name.
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

// Stop ends the stage that is under way.
func (l *Log) Stop() {
	if l != nil {
		l.endCurrent()
	}
}

// beginLocked notes a new span and returns its index, -1 if there are too many.
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

// Spans returns the spans recorded so far, with those of the work that was waited for, in the
// order of their beginning within each.
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

// Counted returns what was counted under name, also by what was waited for.
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
