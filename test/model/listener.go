package model

import (
	"fmt"
	"slices"
)

// Gone is the state of removed objects, in events.
const Gone State = "gone"

// lifeStates are the states that events report, in their order. Each is reported once; a container may
// be removed without having been started.
var lifeStates = []State{Created, Running, Exited, Gone}

// A listener follows the events that one subscriber of GetContainerEvents gets.
type listener struct {
	on       bool               // since the node was last quiet
	was      map[string][]phase // possible stages of each ID at that time
	reported map[string][]State // of each ID, since that time
	latest   map[string]State   // of each ID, since the subscription began
	late     bool               // events may come late
}

// listen begins a subscription.
func (l *listener) listen() {
	*l = listener{late: l.late, reported: make(map[string][]State), latest: make(map[string]State)}
}

// hear processes an event.
func (l *listener) hear(id string, state State) error {
	if l.latest == nil {
		return fmt.Errorf("an event without a listener")
	}
	if !slices.Contains(lifeStates, state) {
		return fmt.Errorf("an event of the state %q", state)
	}
	before, ok := l.latest[id]
	l.latest[id] = state
	l.reported[id] = append(l.reported[id], state)
	if ok && slices.Index(lifeStates, state) <= slices.Index(lifeStates, before) {
		return fmt.Errorf("%s was reported as %s after %s", id, state, before)
	}
	return nil
}

// quiet compares the reported events with the changes of the objects since the node was last quiet,
// as far as these are certain.
func (l *listener) quiet(now map[string][]phase) error {
	if l.latest == nil || l.late {
		return nil
	}
	defer func() {
		l.on, l.was, l.reported = true, now, make(map[string][]State)
	}()
	if !l.on {
		return nil
	}
	for id, is := range now {
		was := l.was[id]
		if len(was) == 0 {
			was = []phase{none}
		}
		if len(is) != 1 || len(was) != 1 {
			continue
		}
		if !fits(was[0], is[0], l.reported[id]) {
			return fmt.Errorf("%s was %s and is %s, and the events of it are %v", id, phaseNames[was[0]], phaseNames[is[0]], l.reported[id])
		}
	}
	return nil
}

// fits reports whether the events lead from one phase to the other.
func fits(was, is phase, reported []State) bool {
	first, last := reached(was), reached(is)
	if first == last {
		return len(reported) == 0
	}
	if len(reported) == 0 || reported[len(reported)-1] != lifeStates[last-1] {
		return false
	}
	// An object that was not started before its end has both events or the last one alone. Its
	// creation is not left out.
	if first == 0 && reported[0] != Created {
		return false
	}
	running, exited := slices.Contains(reported, Running), slices.Contains(reported, Exited)
	if first < 2 && running && last > 2 && !exited || first == 2 && !exited {
		return false
	}
	return !slices.ContainsFunc(reported, func(st State) bool { return slices.Index(lifeStates, st) < first })
}

// reached returns how many stages of its life an object has reached.
func reached(st phase) int {
	switch st {
	case created:
		return 1
	case running, ready:
		return 2
	case exited, notReady:
		return 3
	case gone:
		return 4
	}
	return 0
}

// possible returns the possible stages of each object, by ID.
func (p *pod) possible(states map[podState]struct{}) map[string][]phase {
	all := make(map[string][]phase)
	note := func(id string, st phase) {
		if !slices.Contains(all[id], st) {
			all[id] = append(all[id], st)
		}
	}
	for s := range states {
		unknown := s.box.phase != none && s.box.id == 0
		for _, c := range s.ctrs {
			unknown = unknown || c.phase != none && c.id == 0
		}
		for i, id := range p.byID {
			n := uint8(i + 1)
			st := none
			if s.isGone(n) {
				st = gone
			}
			if s.box.id == n {
				st = s.box.phase
				if st == stopping {
					note(id, ready) // or not ready
					st = notReady
				}
			}
			for _, c := range s.ctrs {
				if c.id == n && c.phase != none {
					st = c.phase
				}
			}
			note(id, st)
			if st == none && unknown {
				note(id, created) // it may be the one
			}
		}
	}
	return all
}
