package model

import (
	"fmt"
	"slices"
)

// Gone is the state of what was removed, in events.
const Gone State = "gone"

// stages are the states that events report, in the order of a life. They are reported
// once each, in this order; a life may end without having been started.
var stages = []State{Created, Running, Exited, Gone}

// A listener follows what one subscriber of GetContainerEvents is sent.
type listener struct {
	on       bool               // since the last time that the node was quiet
	was      map[string][]stage // of each ID: its stages that are possible then
	reported map[string][]State // of each ID, since then
	latest   map[string]State   // of each ID, since the subscription began
	late     bool               // events may come later
}

// listen begins a subscription.
func (l *listener) listen() {
	*l = listener{late: l.late, reported: make(map[string][]State), latest: make(map[string]State)}
}

// hear takes an event.
func (l *listener) hear(id string, state State) error {
	if l.latest == nil {
		return fmt.Errorf("an event, and nobody listens")
	}
	if !slices.Contains(stages, state) {
		return fmt.Errorf("an event of the state %q", state)
	}
	before, ok := l.latest[id]
	l.latest[id] = state
	l.reported[id] = append(l.reported[id], state)
	if ok && slices.Index(stages, state) <= slices.Index(stages, before) {
		return fmt.Errorf("%s was reported as %s after %s", id, state, before)
	}
	return nil
}

// quiet compares what was reported with what has become of the objects since the node was
// quiet before, as far as that is certain.
func (l *listener) quiet(now map[string][]stage) error {
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
			was = []stage{none}
		}
		if len(is) != 1 || len(was) != 1 {
			continue
		}
		if !fits(was[0], is[0], l.reported[id]) {
			return fmt.Errorf("%s was %s and is %s, and the events of it are %v", id, stageNames[was[0]], stageNames[is[0]], l.reported[id])
		}
	}
	return nil
}

// fits tells whether the events are those of the way from one stage to another.
func fits(was, is stage, reported []State) bool {
	first, last := reached(was), reached(is)
	if first == last {
		return len(reported) == 0
	}
	if len(reported) == 0 || reported[len(reported)-1] != stages[last-1] {
		return false
	}
	// What was not started on its way to its end ended without it: both or the end
	// alone. Its begin is not left out.
	if first == 0 && reported[0] != Created {
		return false
	}
	running, exited := slices.Contains(reported, Running), slices.Contains(reported, Exited)
	if first < 2 && running && last > 2 && !exited || first == 2 && !exited {
		return false
	}
	return !slices.ContainsFunc(reported, func(st State) bool { return slices.Index(stages, st) < first })
}

// reached is how many of the stages of a life are behind it.
func reached(st stage) int {
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

// possible are the stages that each object may be in, by its ID.
func (p *pod) possible(states map[podState]struct{}) map[string][]stage {
	all := make(map[string][]stage)
	note := func(id string, st stage) {
		if !slices.Contains(all[id], st) {
			all[id] = append(all[id], st)
		}
	}
	for s := range states {
		unknown := s.box.stage != none && s.box.id == 0
		for _, c := range s.ctrs {
			unknown = unknown || c.stage != none && c.id == 0
		}
		for i, id := range p.byID {
			n := uint8(i + 1)
			st := none
			if s.isGone(n) {
				st = gone
			}
			if s.box.id == n {
				st = s.box.stage
				if st == stopping {
					note(id, ready) // or not
					st = notReady
				}
			}
			for _, c := range s.ctrs {
				if c.id == n && c.stage != none {
					st = c.stage
				}
			}
			note(id, st)
			if st == none && unknown {
				note(id, created) // it may be that one
			}
		}
	}
	return all
}
