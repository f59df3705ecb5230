package model

import (
	"fmt"
	"slices"
	"strings"
)

// maxContainers is the maximum number of container names in a pod of a history.
const maxContainers = 6

// A phase is where a sandbox or a container is in its life.
type phase uint8

const (
	none phase = iota
	created
	running
	exited

	ready
	stopping // nothing new begins in it; shown as ready or not
	notReady

	gone // of IDs
)

var phaseNames = []string{none: "none", created: "created", running: "running", exited: "exited", ready: "ready", stopping: "stopping", notReady: "not ready", gone: "gone"}

// A podState is a pod with its containers.
//
//	sandbox    none ─▶ ready ─▶ stopping ─▶ notReady ─▶ none
//	container  none ─▶ created ─▶ running ─▶ exited ─▶ none
//
// An object is fresh until a client has learnt of it: until then lists may leave it out, and
// it may be removed again unless a call waits for it.
type podState struct {
	box  boxState
	ctrs [maxContainers]ctrState
	done uint64    // bits of calls that have taken effect
	gone [2]uint64 // bits of removed IDs
}

type boxState struct {
	id       uint8 // 0 = not known yet
	phase    phase
	variant  uint8
	fresh    bool
	removing bool
}

type ctrState struct {
	id       uint8
	phase    phase
	variant  uint8
	image    uint8 // index in images.names + 1
	fresh    bool
	removing bool
	ran      bool  // it was started
	lost     bool  // its exit may be unobserved
	code     uint8 // exit code, if exited
	value    uint16
}

// A pod follows one pod.
type pod struct {
	name   string
	ctrs   []string
	ids    map[string]uint8
	byID   []string
	made   map[uint8]Call // call that made each ID
	rules  Rules
	images *images
}

func (p *pod) id(id string) uint8 {
	if id == "" {
		return 0
	}
	n, ok := p.ids[id]
	if !ok {
		p.byID = append(p.byID, id)
		n = uint8(len(p.byID))
		p.ids[id] = n
	}
	return n
}

func (p *pod) known(id string) uint8 { return p.ids[id] }

func (s *podState) isGone(id uint8) bool { return s.gone[id/64]&(1<<(id%64)) != 0 }

func (s *podState) bury(id uint8) {
	if id != 0 {
		s.gone[id/64] |= 1 << (id % 64)
	}
}

// removeCtr removes the container so that states of pods without it compare equal.
func (s *podState) removeCtr(k int) {
	s.bury(s.ctrs[k].id)
	s.ctrs[k] = ctrState{}
}

func (s *podState) removeBox() {
	s.bury(s.box.id)
	s.box = boxState{}
}

func (p *pod) clear(s podState, q *pending) podState {
	s.done &^= q.bit()
	return s
}

// moves implements object.
func (p *pod) moves(s podState, under []*pending, yield func(podState)) {
	p.byThemselves(s, under, yield)
	for _, q := range under {
		if oneOf(q.call.Verb, StopPod, RemovePod, Stop, Remove) {
			p.teardown(s, q, yield)
		}
		if s.done&q.bit() != 0 {
			continue
		}
		p.act(s, q, under, func(to podState) {
			to.done |= q.bit()
			yield(to)
		})
	}
}

func oneOf(v Verb, of ...Verb) bool { return slices.Contains(of, v) }

// byThemselves yields the changes that happen without a call.
func (p *pod) byThemselves(s podState, under []*pending, yield func(podState)) {
	for k := range p.ctrs {
		c := s.ctrs[k]
		if prog := Programs[c.variant]; c.phase == running && prog.Ends {
			p.exit(s, k, prog.Code, yield)
		}
		if c.phase != none && c.fresh && !p.awaited(s, c.id, under) {
			to := s
			to.removeCtr(k)
			yield(to)
		}
	}
	p.goesOn(s, yield)
	if s.box.phase == none || !s.box.fresh || p.awaited(s, s.box.id, under) {
		return
	}
	// No client knows of it, so it is empty.
	to := s
	to.removeBox()
	yield(to)
	// The call that made it has failed or died, and a client must remove it.
	to = s
	to.box.phase = notReady
	yield(to)
}

// goesOn yields the states to which a removal that has begun may lead: its client may have left or
// got an error, and the runtime still finishes it, for example after its next start.
func (p *pod) goesOn(s podState, yield func(podState)) {
	empty := true
	for k := range p.ctrs {
		if s.ctrs[k].phase != none {
			empty = false
		}
		if s.ctrs[k].removing && s.ctrs[k].phase != running {
			to := s
			to.removeCtr(k)
			yield(to)
		}
	}
	if empty && s.box.removing {
		s.removeBox()
		yield(s)
	}
}

// awaited reports whether a client will get the object with this id.
func (p *pod) awaited(s podState, id uint8, under []*pending) bool {
	if id == 0 {
		return false
	}
	return slices.ContainsFunc(under, func(q *pending) bool {
		return q.is(OK) && oneOf(q.call.Verb, RunPod, Create) && p.known(q.answer.ID) == id && s.done&q.bit() != 0
	})
}

// exit yields the states after a container has exited.
func (p *pod) exit(s podState, k, code int, yield func(podState)) {
	end := func(code int) {
		to := s
		to.ctrs[k].phase, to.ctrs[k].code, to.ctrs[k].lost = exited, uint8(code), false
		yield(to)
	}
	end(code)
	if s.ctrs[k].lost {
		end(LostCode)
	}
}

// find returns the index of the call's container, -1 if it does not exist.
func (p *pod) find(s *podState, q *pending) int {
	id := p.known(q.call.ID)
	k := slices.Index(p.ctrs, q.call.Container)
	if id == 0 || k < 0 || s.ctrs[k].phase == none || s.ctrs[k].id != id {
		return -1
	}
	return k
}

func (p *pod) isBox(s *podState, id string) bool {
	n := p.known(id)
	return n != 0 && s.box.phase != none && s.box.id == n
}

// teardown yields the steps of the calls that stop and remove objects. They may happen at any time
// while such a call is under way, repeatedly.
func (p *pod) teardown(s podState, q *pending, yield func(podState)) {
	switch q.call.Verb {
	case Stop, Remove:
		k := p.find(&s, q)
		if k < 0 {
			return
		}
		c := s.ctrs[k]
		switch {
		case c.phase == running && q.call.Verb == Stop && q.call.Grace > 0:
			p.exit(s, k, Programs[c.variant].Term, yield)
			if p.rules.LateHandlers || q.early {
				p.exit(s, k, Killed, yield)
			}
		case c.phase == running:
			p.exit(s, k, Killed, yield)
		case q.call.Verb == Remove:
			p.removal(s, k, yield)
		}
	case StopPod, RemovePod:
		if !p.isBox(&s, q.call.ID) {
			return
		}
		to := s
		switch {
		case s.box.phase == ready:
			to.box.phase = stopping
			yield(to)
			return
		case s.box.phase == stopping:
			to.box.phase = notReady
			yield(to)
		}
		empty := true
		for k := range p.ctrs {
			switch st := s.ctrs[k].phase; {
			case st == none:
				continue
			case st == running:
				p.exit(s, k, Killed, yield)
			case q.call.Verb == RemovePod:
				p.removal(s, k, yield)
			}
			empty = false
		}
		if q.call.Verb != RemovePod || s.box.phase != notReady {
			return
		}
		if to = s; !to.box.removing {
			to.box.removing = true
			yield(to)
		}
		if empty {
			to = s
			to.removeBox()
			yield(to)
		}
	}
}

// removal yields the steps of a container's removal.
func (p *pod) removal(s podState, k int, yield func(podState)) {
	to := s
	if !to.ctrs[k].removing {
		to.ctrs[k].removing = true
		yield(to)
	}
	to.removeCtr(k)
	yield(to)
}

// shows reports whether a sandbox in this stage can be shown in this state.
func (st phase) shows(state State) bool {
	switch state {
	case Ready:
		return st == ready || st == stopping
	case NotReady:
		return st == stopping || st == notReady
	}
	return false
}

// shows reports whether the container can be shown in this state. One that is being removed cannot
// be started any more, and may be shown as exited.
func (c *ctrState) shows(state State) bool {
	switch state {
	case Created:
		return c.phase == created
	case Running:
		return c.phase == running
	case Exited:
		return c.phase == exited || c.removing
	}
	return false
}

// end implements object.
func (p *pod) end(s podState, q *pending) (podState, bool) {
	if q.is(Trouble) && !q.troubled { // of Exec: its container was killed during its start
		k := p.find(&s, q)
		return s, k < 0 || s.ctrs[k].phase != running
	}
	if q.unsettled() {
		return s, true
	}
	done := s.done&q.bit() != 0
	switch q.call.Verb {
	case StopPod:
		if !p.isBox(&s, q.call.ID) {
			return s, q.is(OK)
		}
		quiet := !slices.ContainsFunc(s.ctrs[:], func(c ctrState) bool { return c.phase == running })
		return s, q.is(OK) && s.box.phase == notReady && quiet
	case RemovePod:
		return s, q.is(OK) && !p.isBox(&s, q.call.ID)
	case Remove:
		return s, q.is(OK) && p.find(&s, q) < 0
	case RunPod:
		if done && q.is(OK) && s.box.id == p.known(q.answer.ID) {
			s.box.fresh = false
		}
	case Create:
		if k := slices.Index(p.ctrs, q.call.Container); done && q.is(OK) && s.ctrs[k].id == p.known(q.answer.ID) {
			s.ctrs[k].fresh = false
		}
	case Exec:
		// It was killed, so its container must have been, or nearly.
		if q.is(OK) && q.answer.Exit != 0 {
			k := p.find(&s, q)
			return s, done && q.answer.Exit == Killed && (k < 0 || s.ctrs[k].phase != running)
		}
	}
	return s, done
}

// event implements object.
func (p *pod) event(s podState, kind Kind) (podState, bool) {
	for k := range s.ctrs {
		c := &s.ctrs[k]
		switch {
		case kind == ExecutorGone && (c.phase == created || c.phase == running):
			c.lost = true
		case kind == Quiet && c.phase == running && Programs[c.variant].Ends:
			return s, false
		case kind == Quiet && c.phase == created:
			c.lost = false
		}
	}
	return s, true
}

// text implements object.
func (p *pod) text(s podState) string {
	var b strings.Builder
	name := func(id uint8) string {
		if id == 0 {
			return "?"
		}
		return p.byID[id-1]
	}
	flags := func(of map[string]bool) {
		for _, f := range []string{"fresh", "removing", "end may be lost"} {
			if of[f] {
				b.WriteString(", " + f)
			}
		}
	}
	fmt.Fprintf(&b, "%s %s", p.name, phaseNames[s.box.phase])
	if s.box.phase != none {
		fmt.Fprintf(&b, " (%s, variant %d", name(s.box.id), s.box.variant)
		flags(map[string]bool{"fresh": s.box.fresh, "removing": s.box.removing})
		b.WriteString(")")
	}
	for k, ctr := range p.ctrs {
		c := s.ctrs[k]
		if c.phase == none {
			continue
		}
		fmt.Fprintf(&b, "; %s %s", ctr, phaseNames[c.phase])
		if c.phase == exited {
			fmt.Fprintf(&b, " with %d", c.code)
		}
		fmt.Fprintf(&b, " (%s, %s, value %d", name(c.id), Programs[c.variant].Name, c.value)
		flags(map[string]bool{"fresh": c.fresh, "removing": c.removing, "end may be lost": c.lost})
		b.WriteString(")")
	}
	return b.String()
}
