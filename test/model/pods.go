package model

import (
	"fmt"
	"maps"
	"slices"
)

// Lists are split: what they show of each object is one observation, a call of these verbs in a
// Difference.
const (
	SeesPod       Verb = "sees-pod"
	SeesContainer Verb = "sees-container"
)

// pods follows all pods of a history.
type pods struct {
	byName map[string]*follower[podState]
	names  []string
	seen   map[int][]sight // for each list under way

	listener listener
}

// A sight is what a list shows of one object, or that it does not show it.
type sight struct {
	f *follower[podState]
	p *pending
}

func newPods(h History, rules Rules, images *images) (*pods, error) {
	ps := &pods{byName: make(map[string]*follower[podState]), seen: make(map[int][]sight), listener: listener{late: rules.LateEvents}}
	object := func(name, container string) error {
		if name == "" {
			return nil
		}
		f := ps.byName[name]
		if f == nil {
			o := &pod{name: name, ids: make(map[string]uint8), made: make(map[uint8]Call), rules: rules, images: images}
			f = &follower[podState]{o: o, name: "pod " + name, states: map[podState]struct{}{{}: {}}}
			ps.byName[name] = f
			ps.names = append(ps.names, name)
		}
		o := f.o.(*pod)
		if container == "" || slices.Contains(o.ctrs, container) {
			return nil
		}
		if len(o.ctrs) == maxContainers {
			return fmt.Errorf("pod %s has more than %d containers", name, maxContainers)
		}
		o.ctrs = append(o.ctrs, container)
		return nil
	}
	for _, e := range h {
		if err := object(e.Call.Pod, e.Call.Container); err != nil {
			return nil, err
		}
		for _, it := range e.Answer.Items {
			if err := object(it.Pod, it.Container); err != nil {
				return nil, err
			}
		}
	}
	// IDs are numbered in the order in which clients learn of them.
	for _, e := range h {
		if e.Kind != End {
			continue
		}
		for _, it := range e.Answer.Items {
			if f := ps.byName[it.Pod]; f != nil {
				f.o.(*pod).id(it.ID)
			}
		}
	}
	calls := make(map[int]Call)
	for _, e := range h {
		if e.Kind == Begin {
			calls[e.N] = e.Call
		}
		if c := calls[e.N]; e.Kind == End && e.Answer.ID != "" && c.Pod != "" {
			o := ps.byName[c.Pod].o.(*pod)
			o.made[o.id(e.Answer.ID)] = c
		}
	}
	for _, f := range ps.byName {
		if n := len(f.o.(*pod).byID); n > 127 {
			return nil, fmt.Errorf("%s has had %d IDs, more than 127: the history is too long", f.name, n)
		}
	}
	return ps, nil
}

func (ps *pods) begin(p *pending, _ int) error {
	switch {
	case oneOf(p.call.Verb, ListPods, List):
		return ps.beginList(p)
	case p.call.Pod == "":
		return nil
	}
	f := ps.byName[p.call.Pod]
	for _, q := range append(slices.Clone(f.under), p) {
		q.early = q.early || q.call.Verb == Stop && q.call.ID != "" && beingStarted(q.call.ID, append(f.under, p))
	}
	return f.begin(p)
}

func (ps *pods) end(p *pending, _ int) error {
	switch {
	case oneOf(p.call.Verb, ListPods, List):
		for _, s := range ps.seen[p.n] {
			if err := s.f.end(s.p); err != nil {
				return fmt.Errorf("call %d of %s, %s: %w", p.n, p.client, p.call, err)
			}
		}
		delete(ps.seen, p.n)
		return nil
	case p.call.Pod == "":
		return nil
	}
	return ps.byName[p.call.Pod].end(p)
}

func (ps *pods) event(e Event, taken bool) error {
	switch e.Kind {
	case Listening:
		ps.listener.listen()
		return nil
	case Reported:
		if err := ps.listener.hear(e.Answer.ID, e.Answer.State); !taken {
			return err
		}
		return nil
	}
	now := make(map[string][]phase)
	for _, name := range ps.names {
		f := ps.byName[name]
		if err := f.event(e.Kind, taken); err != nil {
			return err
		}
		if e.Kind == Quiet {
			maps.Copy(now, f.o.(*pod).possible(f.states))
		}
	}
	if e.Kind != Quiet {
		return nil
	}
	if err := ps.listener.quiet(now); !taken {
		return err
	}
	return nil
}

// beginList begins an observation of each object that the list covers.
func (ps *pods) beginList(p *pending) error {
	if p.answer == nil || p.answer.Code.Unsettled() {
		return nil
	}
	for _, name := range ps.names {
		if p.call.Pod != "" && p.call.Pod != name {
			continue
		}
		f := ps.byName[name]
		of := []string{""}
		if p.call.Verb == List {
			of = f.o.(*pod).ctrs
		}
		for _, container := range of {
			c := p.call
			c.Verb, c.Pod, c.Container = SeesPod, name, container
			if container != "" {
				c.Verb = SeesContainer
			}
			a := Answer{Code: OK}
			for _, it := range p.answer.Items {
				if it.Pod == name && it.Container == container {
					a.Items = []Item{it}
				}
			}
			q := p.part(c, &a)
			ps.seen[p.n] = append(ps.seen[p.n], sight{f, q})
			if err := f.begin(q); err != nil {
				return err
			}
		}
	}
	return nil
}

// sees yields s if the list can show this object in it.
func (p *pod) sees(s podState, q *pending, yield func(podState)) {
	if q.taken {
		return
	}
	filter, items := q.call, q.answer.Items
	id, st, fresh := &s.box.id, s.box.phase, &s.box.fresh
	shows := s.box.phase.shows
	inSandbox := true
	if q.call.Verb == SeesContainer {
		k := slices.Index(p.ctrs, q.call.Container)
		id, st, fresh = &s.ctrs[k].id, s.ctrs[k].phase, &s.ctrs[k].fresh
		shows = s.ctrs[k].shows
		inSandbox = filter.Sandbox == "" || p.isBox(&s, filter.Sandbox)
	}
	if len(items) == 0 {
		passes := (filter.ID == "" || p.known(filter.ID) == *id) && inSandbox
		other := false // it may be in another state than the wanted one
		for _, state := range []State{Ready, NotReady, Created, Running, Exited} {
			other = other || filter.State != "" && filter.State != state && shows(state)
		}
		if st == none || *fresh || !passes || other {
			yield(s)
		}
		return
	}
	got := p.known(items[0].ID)
	if st == none || !inSandbox || *id != 0 && *id != got || s.isGone(got) || !shows(items[0].State) {
		return
	}
	*id, *fresh = got, false
	yield(s)
}
