package model

import "slices"

// act yields the states after the call has taken effect in s, if it can.
func (p *pod) act(s podState, q *pending, under []*pending, yield func(podState)) {
	switch q.call.Verb {
	case RunPod:
		p.runPod(s, q, yield)
	case Create:
		p.create(s, q, yield)
	case Start:
		p.start(s, q, under, yield)
	case Update:
		p.update(s, q, under, yield)
	case Stop:
		if k := p.find(&s, q); k < 0 || s.ctrs[k].phase != running {
			yield(s)
		}
	case Exec, Reopen, Checkpoint:
		p.needsRunning(s, q, yield)
	case UpdatePod:
		p.needsBox(s, q, yield)
	case PodStatus:
		p.seesBox(s, q, yield)
	case Status:
		p.seesContainer(s, q, yield)
	case SeesPod, SeesContainer:
		p.sees(s, q, yield)
	}
}

func (p *pod) runPod(s podState, q *pending, yield func(podState)) {
	v := uint8(q.call.Variant)
	there := s.box.phase != none
	switch {
	case q.unsettled():
		if !there {
			s.box = boxState{phase: ready, variant: v, fresh: true}
			yield(s)
		}
	case q.is(OK):
		id := p.id(q.answer.ID)
		if !there && !s.isGone(id) {
			s.box = boxState{id: id, phase: ready, variant: v, fresh: true}
			yield(s)
			return
		}
		// It repeats an earlier request, or joins one that is under way.
		if there && s.box.phase == ready && (s.box.variant == v || s.box.fresh) && (s.box.id == id || s.box.id == 0 && !s.isGone(id)) {
			s.box.id = id
			yield(s)
		}
	case q.is(Exists):
		if there && (s.box.variant != v || s.box.phase != ready) {
			yield(s)
		}
	}
}

func (p *pod) create(s podState, q *pending, yield func(podState)) {
	k, v := slices.Index(p.ctrs, q.call.Container), uint8(q.call.Variant)
	c, img := s.ctrs[k], uint8(slices.Index(p.images.names, q.call.Image)+1)
	same := c.variant == v && c.image == img
	there := c.phase != none
	mayBegin := p.isBox(&s, q.call.Sandbox) && s.box.phase == ready
	fresh := ctrState{phase: created, variant: v, image: img, fresh: true, value: uint16(Values[0])}
	found := p.images.during(q.n, q.call.Image)
	switch {
	case q.unsettled():
		if !there && mayBegin && found.there {
			s.ctrs[k] = fresh
			yield(s)
		}
	case q.is(OK):
		id := p.id(q.answer.ID)
		if !there && mayBegin && found.there && !s.isGone(id) {
			fresh.id = id
			s.ctrs[k] = fresh
			yield(s)
			return
		}
		if there && (c.phase == created || c.phase == running) && (same || c.fresh) && (c.id == id || c.id == 0 && !s.isGone(id)) {
			s.ctrs[k].id = id
			yield(s)
		}
	case q.is(Exists):
		if there && (!same || c.phase == exited || c.removing) {
			yield(s)
		}
	case q.is(NotFound):
		if !p.isBox(&s, q.call.Sandbox) || found.away {
			yield(s)
		}
	case q.is(BadState):
		if p.isBox(&s, q.call.Sandbox) && s.box.phase != ready {
			yield(s)
		}
	}
}

func (p *pod) start(s podState, q *pending, under []*pending, yield func(podState)) {
	k := p.find(&s, q)
	mayBegin := k >= 0 && s.ctrs[k].phase == created && !s.ctrs[k].removing && s.box.phase == ready
	switch {
	case q.is(NotFound):
		if k < 0 {
			yield(s)
		}
	case q.is(BadState):
		another := slices.DeleteFunc(slices.Clone(under), func(o *pending) bool { return o == q })
		if k < 0 {
			return
		}
		if !mayBegin || beingStarted(q.call.ID, another) {
			yield(s)
		}
		// The start had begun when the container or its pod was stopped: it counts as started.
		if s.ctrs[k].phase == created && (s.box.phase != ready || beingStopped(q.call, another)) {
			s.ctrs[k].phase, s.ctrs[k].code = exited, NeverRan
			yield(s)
		}
	case q.is(OK) || q.unsettled():
		if !mayBegin {
			return
		}
		to := s
		to.ctrs[k].phase, to.ctrs[k].ran = running, true
		yield(to)
		if q.is(OK) {
			return
		}
		// The program could not be executed, or it is unknown whether it was.
		for _, code := range []int{NeverRan, LostCode} {
			to = s
			to.ctrs[k].phase, to.ctrs[k].code = exited, uint8(code)
			yield(to)
		}
	}
}

func (p *pod) update(s podState, q *pending, under []*pending, yield func(podState)) {
	k := p.find(&s, q)
	may := k >= 0 && (s.ctrs[k].phase == created || s.ctrs[k].phase == running)
	switch {
	case q.is(NotFound):
		if k < 0 {
			yield(s)
		}
	case q.is(BadState):
		if k >= 0 && (!may || s.ctrs[k].removing || beingStarted(q.call.ID, under) || beingStopped(q.call, under)) {
			yield(s)
		}
	case q.is(OK) || q.unsettled():
		if may {
			s.ctrs[k].value = uint16(q.call.Value)
			yield(s)
		}
	}
}

// beingStarted reports whether a start is under way: the limits of the container may be on their
// way to the kernel then, and cannot be changed.
func beingStarted(id string, under []*pending) bool {
	return slices.ContainsFunc(under, func(q *pending) bool { return q.call.Verb == Start && q.call.ID == id })
}

// beingStopped reports whether a call is ending the container: its limits are not changed then.
func beingStopped(c Call, under []*pending) bool {
	return slices.ContainsFunc(under, func(q *pending) bool {
		return oneOf(q.call.Verb, Stop, Remove) && q.call.ID == c.ID || oneOf(q.call.Verb, StopPod, RemovePod)
	})
}

// needsRunning is for calls that change nothing and need a running container.
func (p *pod) needsRunning(s podState, q *pending, yield func(podState)) {
	k := p.find(&s, q)
	runs := k >= 0 && s.ctrs[k].phase == running
	switch {
	case q.is(OK) && runs, q.is(NotFound) && k < 0, q.is(BadState) && k >= 0 && !runs:
		yield(s)
	}
}

// needsBox is for calls that change nothing and need a sandbox that is not being removed.
func (p *pod) needsBox(s podState, q *pending, yield func(podState)) {
	there := p.isBox(&s, q.call.ID)
	switch {
	case q.is(OK) && there, q.is(NotFound) && !there, q.is(BadState) && there && s.box.removing:
		yield(s)
	}
}

func (p *pod) seesBox(s podState, q *pending, yield func(podState)) {
	there := p.isBox(&s, q.call.ID)
	switch {
	case q.is(OK):
		if there && s.box.phase.shows(q.answer.State) {
			s.box.fresh = false
			yield(s)
		}
	case q.is(NotFound):
		if !there || s.box.fresh {
			yield(s)
		}
	}
}

func (p *pod) seesContainer(s podState, q *pending, yield func(podState)) {
	k := p.find(&s, q)
	switch {
	case q.is(OK):
		if k < 0 {
			return
		}
		c, a := &s.ctrs[k], q.answer
		if c.shows(a.State) && int(c.value) == a.Value && (a.State != Exited || c.phase != exited || int(c.code) == a.Exit) {
			c.fresh = false
			yield(s)
		}
	case q.is(NotFound):
		if k < 0 || s.ctrs[k].fresh {
			yield(s)
		}
	}
}
