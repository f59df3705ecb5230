package model

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Difference is an event in a history that a runtime which conforms to the model cannot show,
// usually a wrong answer.
type Difference struct {
	At      int      // index of the event
	Call    Call     // zero if the event ends no call; of a list, the part about one object
	Answer  Answer   // of the call
	In      []string // possible states of the call's object while it was under way
	Allowed []Code   // legal codes instead; none for calls that only read
	Why     error
}

// Kind describes the difference in a line, without details that vary.
func (d Difference) Kind() string {
	if d.Call.Verb == "" {
		why, _, _ := strings.Cut(d.Why.Error(), "\n")
		return why
	}
	text := string(d.Call.Verb) + " in " + strings.Join(d.In, "|") + ": " + d.Got()
	if len(d.Allowed) > 0 {
		allowed := make([]string, len(d.Allowed))
		for i, c := range d.Allowed {
			allowed[i] = string(c)
		}
		text += ", allowed: " + strings.Join(allowed, ", ")
	}
	return text
}

// Got returns the answer in short: its code, and what calls that only read have read.
func (d Difference) Got() string {
	a := d.Answer
	if a.Code != OK || !looks(d.Call.Verb) {
		return string(a.Code)
	}
	var it Item
	if len(a.Items) > 0 {
		it = a.Items[0]
	}
	switch state := a.State + it.State; {
	case d.Call.Verb == Status:
		return fmt.Sprintf("ok %s exit=%d value=%d", state, a.Exit, a.Value)
	case state != "":
		return "ok " + string(state)
	case a.ID+it.ID != "":
		return "ok there"
	}
	return "ok not there"
}

// looks reports whether calls of this kind only read.
func looks(v Verb) bool {
	return oneOf(v, PodStatus, ListPods, Status, List, ImageStatus, ListImages, SeesPod, SeesContainer)
}

// Differences returns everything that Check would refuse. After each of them the answer is taken
// for true, and the history is followed from there. The error says where that was impossible.
func (r Rules) Differences(h History) ([]Difference, error) {
	var all []Difference
	taken := make(map[int]bool)
	for {
		err := r.check(h, taken)
		var no *Illegal
		switch {
		case err == nil:
			slices.SortFunc(all, func(a, b Difference) int { return a.At - b.At })
			return all, nil
		case !errors.As(err, &no), taken[no.At]:
			return all, err
		}
		d := Difference{At: no.At, Why: no.Why}
		if e := h[no.At]; e.Kind == End {
			d.Answer = e.Answer
			begin := slices.IndexFunc(h, func(b Event) bool { return b.Kind == Begin && b.N == e.N })
			d.Call = h[begin].Call
			var of *refusal
			if errors.As(err, &of) {
				d.Call, d.Answer, d.In = of.p.call, *of.p.answer, slices.Sorted(maps.Keys(of.p.where))
			}
			d.Allowed = r.allowed(h[:no.At+1], begin, taken)
		}
		all = append(all, d)
		taken[no.At] = true
	}
}

// allowed returns the codes with which the last event of h, the end of the call that began there,
// would be legal.
func (r Rules) allowed(h History, begin int, taken map[int]bool) []Code {
	c := h[begin].Call
	if looks(c.Verb) {
		return nil
	}
	ids := []string{""}
	if oneOf(c.Verb, RunPod, Create, Pull) {
		ids = []string{"new"}
	}
	calls := make(map[int]Call)
	for _, e := range h[:len(h)-1] { // or an object that a client has got
		if e.Kind == Begin {
			calls[e.N] = e.Call
		}
		of := calls[e.N]
		if e.Kind == End && e.Answer.ID != "" && of.Verb == c.Verb && of.Pod == c.Pod && of.Container == c.Container && of.Image == c.Image {
			ids = append(ids, e.Answer.ID)
		}
	}
	at := len(h) - 1
	var legal []Code
	for _, code := range []Code{OK, NotFound, Exists, BadState, Invalid, Trouble} {
		for _, id := range ids {
			other := slices.Clone(h)
			other[at].Answer = Answer{Code: code}
			if code == OK {
				other[at].Answer.ID = id
			}
			if r.check(other, taken) == nil {
				legal = append(legal, code)
				break
			}
		}
	}
	return legal
}

// where implements object.
func (p *pod) where(s podState, c Call) string {
	box := phaseNames[s.box.phase]
	switch {
	case s.box.phase == none:
	case c.Verb == RunPod && s.box.variant != uint8(c.Variant):
		box += ", of another request"
	case c.Verb != RunPod && c.Verb != Create && c.ID != "" && c.Container == "" && !p.isBox(&s, c.ID):
		box = phaseNames[none]
	}
	k := slices.Index(p.ctrs, c.Container)
	if k < 0 {
		return box
	}
	ctr := &s.ctrs[k]
	at := phaseNames[ctr.phase]
	if ctr.removing {
		at += ", being removed"
	}
	if c.Verb != Create {
		if c.ID != "" && (ctr.id == 0 || ctr.id != p.known(c.ID)) {
			return phaseNames[none]
		}
		return at
	}
	if ctr.phase != none && ctr.variant != uint8(c.Variant) {
		at += ", of another request"
	}
	if s.box.phase != none && !p.isBox(&s, c.Sandbox) {
		box = phaseNames[none]
	}
	return box + " pod, " + at
}

// force implements object.
func (p *pod) force(s podState, q *pending, yield func(podState)) {
	c, a := q.call, q.answer
	k := slices.Index(p.ctrs, c.Container)
	if a.Code != OK {
		switch {
		case a.Code != NotFound:
		case c.Verb == PodStatus && p.isBox(&s, c.ID):
			s.removeBox()
		case c.Verb == Status && p.find(&s, q) >= 0:
			s.removeCtr(k)
		}
		yield(s)
		return
	}
	switch c.Verb {
	case RunPod:
		p.putBox(&s, p.id(a.ID), ready)
	case PodStatus:
		p.seen(s, q, p.known(c.ID), k, a.State, yield)
		return
	case SeesPod, SeesContainer:
		id, state := uint8(0), State("")
		switch filtered := c.ID != "" || c.State != "" || c.Sandbox != ""; {
		case len(a.Items) > 0:
			id, state = p.id(a.Items[0].ID), a.Items[0].State
		case filtered:
			yield(s)
			return
		}
		p.seen(s, q, id, k, state, yield)
		return
	case Create:
		p.putCtr(&s, k, p.id(a.ID), created)
	case Start:
		if k = p.find(&s, q); k >= 0 {
			s.ctrs[k].phase, s.ctrs[k].ran = running, true
		}
	case Update:
		if k = p.find(&s, q); k >= 0 {
			s.ctrs[k].value = uint16(c.Value)
		}
	case Status:
		p.seen(s, q, p.known(c.ID), k, a.State, func(to podState) {
			ctr := &to.ctrs[k]
			if ctr.value = uint16(a.Value); ctr.phase == exited {
				ctr.code = uint8(a.Exit)
			}
			yield(to)
		})
		return
	case Stop:
		if k = p.find(&s, q); k >= 0 && s.ctrs[k].phase == running {
			p.ended(s, k, yield)
			return
		}
	case StopPod:
		if p.isBox(&s, c.ID) {
			s.box.phase = notReady
			p.endedFrom(s, 0, yield)
			return
		}
	case RemovePod:
		for k := range s.ctrs {
			s.removeCtr(k)
		}
		s.removeBox()
	case Remove:
		if k = p.find(&s, q); k >= 0 {
			s.removeCtr(k)
		}
	}
	yield(s)
}

// putBox sets the sandbox to id.
func (p *pod) putBox(s *podState, id uint8, st phase) {
	if s.box.id != id || s.box.phase == none {
		s.bury(s.box.id)
		s.unbury(id)
		s.box = boxState{id: id, variant: uint8(p.made[id].Variant)}
	}
	s.box.phase, s.box.fresh = st, false
}

// putCtr sets the container to id.
func (p *pod) putCtr(s *podState, k int, id uint8, st phase) {
	if s.ctrs[k].id != id || s.ctrs[k].phase == none {
		made := p.made[id]
		s.bury(s.ctrs[k].id)
		s.unbury(id)
		s.ctrs[k] = ctrState{id: id, variant: uint8(made.Variant), image: uint8(slices.Index(p.images.names, made.Image) + 1), value: uint16(Values[0])}
	}
	s.ctrs[k].phase, s.ctrs[k].fresh = st, false
}

func (s *podState) unbury(id uint8) { s.gone[id/64] &^= 1 << (id % 64) }

// seen yields s with the sandbox, or the container if k is not negative, in a state, or without it
// if state is "".
func (p *pod) seen(s podState, q *pending, id uint8, k int, state State, yield func(podState)) {
	switch {
	case k < 0 && state == "":
		if s.box.phase != none {
			s.removeBox()
		}
	case k < 0:
		if s.box.id != id || !s.box.phase.shows(state) {
			p.putBox(&s, id, map[State]phase{Ready: ready, NotReady: notReady}[state])
		}
	case state == "":
		if s.ctrs[k].phase != none {
			s.removeCtr(k)
		}
	case s.ctrs[k].id == id && s.ctrs[k].shows(state):
	case state == Exited:
		p.putCtr(&s, k, id, running)
		p.ended(s, k, yield)
		return
	default:
		p.putCtr(&s, k, id, map[State]phase{Created: created, Running: running}[state])
	}
	yield(s)
}

// ended yields the states after a container has ended, in every possible way.
func (p *pod) ended(s podState, k int, yield func(podState)) {
	prog := Programs[s.ctrs[k].variant]
	for _, code := range []int{prog.Code, prog.Term, Killed, LostCode, NeverRan} {
		s.ctrs[k].phase, s.ctrs[k].code, s.ctrs[k].lost = exited, uint8(code), false
		yield(s)
	}
}

// endedFrom yields the states after all running containers from the k-th on have ended.
func (p *pod) endedFrom(s podState, k int, yield func(podState)) {
	switch {
	case k == len(s.ctrs):
		yield(s)
	case s.ctrs[k].phase == running:
		p.ended(s, k, func(to podState) { p.endedFrom(to, k+1, yield) })
	default:
		p.endedFrom(s, k+1, yield)
	}
}
