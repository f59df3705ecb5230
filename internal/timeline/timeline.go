// Package timeline records where a pod's time went while it started: a list of stages, each with
// its parts. Both crispd and the agent keep their half in a Recorder, and report it in this form
// (JSON). Package waterfall is for whoever has both halves.
//
//	agent    volumes ┤├ sandbox ────────────┤├ pull ──────────────┤├ create ┤├ start ┤├ readiness probe ─┤
//	crispd            ├ sandbox ───────────┤  ├ pull ────────────┤  ├ create┤ ├ start┤
//	                   namespaces ┤├ cni ──┤    registry ┤├ layers ┤
//
// Times are the node's: a clock that is set while a pod starts shows in its timeline.
package timeline

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/internal/stage"
)

// A Pod identifies a pod.
type Pod struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// String returns namespace/name.
func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// A Stage is something that a pod waited for, from one time to another.
type Stage struct {
	Name      string    `json:"name"`
	Container string    `json:"container,omitempty"` // whose it is; "" = the pod's
	Attempt   uint32    `json:"attempt,omitempty"`   // of the container
	Begin     time.Time `json:"begin"`
	End       time.Time `json:"end,omitzero"`     // zero while it is open
	Times     int       `json:"times,omitempty"`  // how often it happened between Begin and End, if more than once
	Detail    string    `json:"detail,omitempty"` // for people
	Err       string    `json:"error,omitempty"`  // how it failed
	Parts     []Stage   `json:"parts,omitempty"`
}

// Took returns how long the stage took, or has taken by now if it is open.
func (s Stage) Took(now time.Time) time.Duration {
	if !s.End.IsZero() {
		now = s.End
	}
	return now.Sub(s.Begin)
}

// Label returns the stage's name with its container: "pull web".
func (s Stage) Label() string {
	if s.Container == "" {
		return s.Name
	}
	return s.Name + " " + s.Container
}

// maxParts bounds the parts kept of one stage: the longest. Only images with very many layers
// have more.
const maxParts = 24

// parts turns spans into stages: parts belong to the stage during which they began. An open one
// has no end.
func parts(spans []stage.Span) []Stage {
	var list []Stage
	for _, s := range spans {
		if !s.Part {
			list = append(list, Stage{Name: s.Name, Begin: s.Begin, End: s.End})
		}
	}
	for _, s := range spans {
		if !s.Part {
			continue
		}
		i := slices.IndexFunc(list, func(p Stage) bool {
			return !s.Begin.Before(p.Begin) && (p.End.IsZero() || s.Begin.Before(p.End) || s.Begin.Equal(p.Begin))
		})
		part := Stage{Name: s.Name, Begin: s.Begin, End: s.End}
		if i < 0 {
			list = append(list, part)
			continue
		}
		list[i].Parts = append(list[i].Parts, part)
	}
	for i := range list {
		list[i].Parts = longest(list[i].Parts)
	}
	return longest(list)
}

// longest returns at most maxParts of list, in its order.
func longest(list []Stage) []Stage {
	if len(list) <= maxParts {
		return list
	}
	now := time.Time{}
	for _, s := range list {
		now = Later(now, Later(s.Begin, s.End))
	}
	took := make([]time.Duration, len(list))
	for i, s := range list {
		took[i] = s.Took(now)
	}
	least := slices.Sorted(slices.Values(took))[len(list)-maxParts]
	kept := make([]Stage, 0, maxParts)
	for i, s := range list {
		if took[i] >= least && len(kept) < maxParts {
			kept = append(kept, s)
		}
	}
	return kept
}

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Sort orders stages by beginning; of two that begin together the longer comes first.
func Sort(list []Stage) {
	slices.SortStableFunc(list, func(a, b Stage) int {
		return cmp.Or(a.Begin.Compare(b.Begin), b.End.Compare(a.End), strings.Compare(a.Label(), b.Label()))
	})
}

// FirstOutput is the stage from a container's start to its first output.
const FirstOutput = "first output"
