package model

import (
	"fmt"
	"slices"
	"strings"
)

// A pending call is one that may still have effects.
type pending struct {
	n        int
	client   string
	call     Call
	answer   *Answer // its later answer, nil if it never comes
	slot     uint    // of its bit in the states
	ended    bool    // its client is gone, but it may still take effect
	troubled bool    // the node had a failure while it was under way
	early    bool    // a Stop of a container that was being started: its grace period may pass before there is a process

	// Of Differences.
	taken bool            // the answer is taken for true, though it is illegal
	where map[string]bool // possible states of its object meanwhile; nil if not needed
}

// part returns the part of the call that concerns one object, as a call with an answer of its own.
func (p *pending) part(c Call, a *Answer) *pending {
	q := &pending{n: p.n, client: p.client, call: c, answer: a, taken: p.taken}
	if p.where != nil {
		q.where = make(map[string]bool)
	}
	return q
}

// unsettled reports whether the effects of the call are unknown.
func (p *pending) unsettled() bool { return p.taken || p.answer == nil || p.answer.Code.Unsettled() }

func (p *pending) bit() uint64 { return 1 << p.slot }

// is reports whether the call certainly ends with the code.
func (p *pending) is(code Code) bool { return !p.taken && p.answer != nil && p.answer.Code == code }

// slots is the number of concurrent calls about one object.
const slots = 64

// An object is what a follower follows: S is its whole state, with a bit for each call under way
// that is set once the call has taken effect.
type object[S comparable] interface {
	// moves yields the states that s may become in one step, by a call under way or by itself.
	moves(s S, under []*pending, yield func(S))
	// end returns s after the answer of the call; false: the answer is impossible.
	end(s S, p *pending) (S, bool)
	// event returns s after something happened to the node; false: that is impossible.
	event(s S, kind Kind) (S, bool)
	// clear clears the call's bit.
	clear(s S, p *pending) S
	// text describes s, for people.
	text(s S) string

	// force yields the states that s must be, or may be, if the call's answer is true now.
	force(s S, p *pending, yield func(S))
	// where describes in a few words the state of the call's object.
	where(s S, c Call) string
}

// A follower has all states in which one object may be.
type follower[S comparable] struct {
	o      object[S]
	name   string
	states map[S]struct{}
	under  []*pending
}

// most is the number of possible states of an object at which the check gives up.
const most = 200_000

func (f *follower[S]) close() error {
	queue := make([]S, 0, len(f.states))
	for s := range f.states {
		queue = append(queue, s)
	}
	for len(queue) > 0 {
		s := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		f.o.moves(s, f.under, func(to S) {
			if _, ok := f.states[to]; !ok {
				f.states[to] = struct{}{}
				queue = append(queue, to)
			}
		})
		if len(f.states) > most {
			return fmt.Errorf("%s: more than %d states: the history overlaps too much", f.name, most)
		}
	}
	for _, p := range f.under {
		if p.where == nil || p.ended {
			continue
		}
		for s := range f.states {
			p.where[f.o.where(s, p.call)] = true
		}
	}
	return nil
}

func (f *follower[S]) begin(p *pending) error {
	used := uint64(0)
	for _, q := range f.under {
		used |= q.bit()
	}
	for p.slot = 0; p.slot < slots && used&p.bit() != 0; {
		p.slot++
	}
	if p.slot == slots {
		return fmt.Errorf("%s: more than %d calls are under way", f.name, slots)
	}
	f.under = append(f.under, p)
	return f.close()
}

// keep replaces the states by the results of change.
func (f *follower[S]) keep(change func(S) (S, bool)) (none bool) {
	next := make(map[S]struct{}, len(f.states))
	for s := range f.states {
		if to, ok := change(s); ok {
			next[to] = struct{}{}
		}
	}
	if len(next) == 0 {
		return true
	}
	f.states = next
	return false
}

func (f *follower[S]) end(p *pending) error {
	if p.taken {
		f.force(p)
		p.ended = true
		return f.close()
	}
	if p.is(Trouble) && !p.troubled && p.call.Verb != Exec {
		return f.illegal(p, "an error of the node, which had no trouble")
	}
	if p.is(Left) && p.call.Patience == 0 {
		return f.illegal(p, "the client did not leave")
	}
	if p.is(Lost) && !p.troubled {
		return f.illegal(p, "no answer, though the runtime did not end")
	}
	none := f.keep(func(s S) (S, bool) {
		to, ok := f.o.end(s, p)
		if ok && !p.unsettled() {
			to = f.o.clear(to, p)
		}
		return to, ok
	})
	if none {
		return f.illegal(p, "")
	}
	if p.unsettled() {
		p.ended = true
	} else {
		f.under = slices.DeleteFunc(f.under, func(q *pending) bool { return q == p })
	}
	return f.close()
}

// force takes the answer for true. If it is possible in some states, only these are kept.
func (f *follower[S]) force(p *pending) {
	as, other := make(map[S]struct{}), make(map[S]struct{})
	for s := range f.states {
		f.o.force(s, p, func(to S) {
			if to == s {
				as[to] = struct{}{}
			} else {
				other[to] = struct{}{}
			}
		})
	}
	if f.states = as; len(as) == 0 {
		f.states = other
	}
}

func (f *follower[S]) event(kind Kind, taken bool) error {
	if kind == Quiet {
		for _, p := range f.under {
			f.keep(func(s S) (S, bool) { return f.o.clear(s, p), true })
		}
		f.under = nil
	}
	none := f.keep(func(s S) (S, bool) { return f.o.event(s, kind) })
	if none && !taken {
		return fmt.Errorf("%s: %s cannot be\nit could be:\n%s", f.name, kind, f.texts())
	}
	return f.close()
}

func (f *follower[S]) illegal(p *pending, why string) error {
	if why == "" {
		why = "no order of the calls explains it"
	}
	text := fmt.Sprintf("call %d of %s, %s: answer %q: %s\n%s could be:\n%s", p.n, p.client, p.call, p.answer, why, f.name, f.texts())
	return &refusal{p, text}
}

// A refusal is an impossible answer.
type refusal struct {
	p    *pending
	text string
}

func (r *refusal) Error() string { return r.text }

// texts describes the states, a line each; only a few if there are many.
func (f *follower[S]) texts() string {
	const few = 12
	var lines []string
	for s := range f.states {
		lines = append(lines, "  "+f.o.text(s))
	}
	slices.Sort(lines)
	lines = slices.Compact(lines)
	if n := len(lines); n > few {
		lines = append(lines[:few], fmt.Sprintf("  and %d more", n-few))
	}
	return strings.Join(lines, "\n")
}

// An Illegal is the first event of a history that no runtime can show.
type Illegal struct {
	At  int // index of the event
	Why error
}

func (e *Illegal) Error() string { return e.Why.Error() }

func (e *Illegal) Unwrap() error { return e.Why }

// Rules are the properties of nodes whose histories are checked.
type Rules struct {
	// LateHandlers: a program may get SIGTERM before it has installed a handler. As the first
	// process of its PID namespace it ignores the signal then, and is killed after its grace
	// period.
	LateHandlers bool
	// LateEvents: a quiet node may still have events to send.
	LateEvents bool
}

// Check follows the history and returns an *Illegal for the first impossible event, or nil.
func (r Rules) Check(h History) error { return r.check(h, nil) }

// check is Check, but takes the events at the indices in taken for true. Unless taken is nil,
// refusals have the states of their objects.
func (r Rules) check(h History, taken map[int]bool) error {
	if err := checkIDs(h, taken); err != nil {
		return err
	}
	images, err := newImages(h)
	if err != nil {
		return err
	}
	if err := run(h, taken, images); err != nil {
		return err
	}
	pods, err := newPods(h, r, images)
	if err != nil {
		return err
	}
	return run(h, taken, pods)
}

// follows are the callbacks of run.
type follows interface {
	begin(p *pending, i int) error
	end(p *pending, i int) error
	event(e Event, taken bool) error
}

func run(h History, taken map[int]bool, f follows) error {
	ends := make(map[int]int) // of calls, by number
	for i := range h {
		if h[i].Kind == End {
			ends[h[i].N] = i
		}
	}
	under := make(map[int]*pending)
	trouble, down := false, false
	for i, e := range h {
		var err error
		switch e.Kind {
		case Begin:
			p := &pending{n: e.N, client: e.Client, call: e.Call, troubled: trouble || down}
			if end, ok := ends[e.N]; ok {
				p.answer, p.taken = &h[end].Answer, taken[end]
			}
			if taken != nil {
				p.where = make(map[string]bool)
			}
			if under[e.N] != nil {
				return &Illegal{i, fmt.Errorf("call %d begins twice", e.N)}
			}
			under[e.N] = p
			err = f.begin(p, i)
		case End:
			p := under[e.N]
			if p == nil {
				return &Illegal{i, fmt.Errorf("call %d ends, and has not begun", e.N)}
			}
			delete(under, e.N)
			err = f.end(p, i)
		default:
			switch e.Kind {
			case Faults, ExecutorGone:
				trouble = true
			case Mended:
				trouble = false
			case Crash:
				down = true
			case Up:
				down = false
			case Listening, Reported:
			case Quiet:
				if len(under) > 0 {
					return &Illegal{i, fmt.Errorf("%d calls are under way on a quiet node", len(under))}
				}
			default:
				return &Illegal{i, fmt.Errorf("no event is called %q", e.Kind)}
			}
			for _, p := range under {
				p.troubled = p.troubled || trouble || down
			}
			err = f.event(e, taken[i])
		}
		if err != nil {
			return &Illegal{i, err}
		}
	}
	return nil
}

// checkIDs checks what is wrong with an answer by itself.
func checkIDs(h History, taken map[int]bool) error {
	calls := make(map[int]Call)
	for i, e := range h {
		if e.Kind == Begin {
			calls[e.N] = e.Call
			continue
		}
		if e.Kind != End || e.Answer.Code != OK || taken[i] {
			continue
		}
		c, a := calls[e.N], e.Answer
		wantsID := c.Verb == RunPod || c.Verb == Create || c.Verb == Pull
		if wantsID && a.ID == "" {
			return &Illegal{i, fmt.Errorf("call %d, %s: the answer has no ID", e.N, c)}
		}
		names, ids := make(map[string]bool), make(map[string]bool)
		for _, it := range a.Items {
			name := it.Pod + "/" + it.Container + "/" + it.Image
			switch {
			case it.ID == "":
				return &Illegal{i, fmt.Errorf("call %d, %s: item %s has no ID", e.N, c, it)}
			case ids[it.ID]:
				return &Illegal{i, fmt.Errorf("call %d, %s: %s is there twice", e.N, c, it.ID)}
			case names[name]:
				return &Illegal{i, fmt.Errorf("call %d, %s: two objects are called %s", e.N, c, strings.Trim(name, "/"))}
			case c.ID != "" && it.ID != c.ID, c.State != "" && it.State != c.State, c.Pod != "" && it.Pod != c.Pod, c.Sandbox != "" && it.Sandbox != "" && it.Sandbox != c.Sandbox:
				return &Illegal{i, fmt.Errorf("call %d, %s: item %s does not pass the filter", e.N, c, it)}
			}
			names[name], ids[it.ID] = true, true
		}
	}
	return nil
}
