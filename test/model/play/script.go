// Package play makes histories for package model: it generates scripts for a few clients and
// for faults of the node, plays them on a node by CRI, has the model check what the clients
// have observed, and shortens a script that fails.
//
// A script is text, so that one that failed can be kept and played again:
//
//	latency 7
//	round
//	a 0ms run-pod pod=p
//	b 5ms create pod=p container=c patience=20
//	! 1ms crash step=3 after
//	round
//	a 0ms start pod=p container=c
//
// The lines of a round run concurrently, those of one client one after the other, each after
// its delay. The client "!" stands for faults of the node. A round ends when all lines are
// done, the runtime is up and nothing changes any more; then everything is read. After the
// last round everything is removed, and nothing may be left.
//
// A round with a block is an overlap, for which no timing is needed:
//
//	round
//	! 0ms block step=3
//	! 0ms crash
//	a 0ms remove pod=p container=c
//	b 0ms start pod=p container=c
//
// The first client's call is blocked at its third step. The other clients run until they have ended,
// or wait for it. Then come the other faults, and then the call goes on.
//
// Scripts have no IDs: a step is about the object that its client knows best by that name, or
// with "old" about the previous one.
package play

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/test/model"
)

// Nemesis is the client that stands for faults of the node.
const Nemesis = "!"

// The acts of the Nemesis.
const (
	Crash    = "crash"    // the runtime dies, at Step if the node supports steps
	Both     = "both"     // and the executor with it
	Executor = "executor" // only the executor
	Restart  = "restart"  // the runtime is stopped in order, and started again
	Fail     = "fail"     // Step fails once
	Block    = "block"    // makes the round an overlap, at Step
)

// A Step is a line of a script.
type Step struct {
	Client string
	Delay  time.Duration
	Call   model.Call // without IDs
	Old    bool       // about the object before the latest one

	// Of the Nemesis.
	Act   string
	Step  int  // counted from now, from 1; of Crash, Both, Fail and Block
	After bool // after the step has taken effect, else instead of it
}

// A Round is the steps that run concurrently.
type Round []Step

// A Script produces a whole history.
type Script struct {
	Latency uint64 // seed of durations, where the node can choose them
	Rounds  []Round
}

func (s Step) String() string {
	if s.Client != Nemesis {
		call := s.Call.String()
		if s.Old {
			call += " old"
		}
		return fmt.Sprintf("%s %v %s", s.Client, s.Delay, call)
	}
	text := fmt.Sprintf("%s %v %s", s.Client, s.Delay, s.Act)
	if s.Step != 0 {
		text += " step=" + strconv.Itoa(s.Step)
	}
	if s.After {
		text += " after"
	}
	return text
}

func (s Script) String() string {
	var b strings.Builder
	fmt.Fprintln(&b, "latency", s.Latency)
	for _, r := range s.Rounds {
		fmt.Fprintln(&b, "round")
		for _, step := range r {
			fmt.Fprintln(&b, step)
		}
	}
	return b.String()
}

// Parse is the inverse of Script.String. Lines that begin with "#" are ignored.
func Parse(text string) (s Script, err error) {
	for i, line := range strings.Split(text, "\n") {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || strings.HasPrefix(f[0], "#"):
		case f[0] == "latency" && len(f) == 2:
			s.Latency, err = strconv.ParseUint(f[1], 10, 64)
		case f[0] == "round":
			s.Rounds = append(s.Rounds, nil)
		case len(s.Rounds) == 0 || len(f) < 3:
			err = fmt.Errorf("no step of a round")
		default:
			var step Step
			if step, err = parseStep(f); err == nil {
				last := &s.Rounds[len(s.Rounds)-1]
				*last = append(*last, step)
			}
		}
		if err != nil {
			return s, fmt.Errorf("line %d, %q: %w", i+1, line, err)
		}
	}
	return s, nil
}

func parseStep(f []string) (s Step, err error) {
	s.Client = f[0]
	if s.Delay, err = time.ParseDuration(f[1]); err != nil {
		return s, err
	}
	if s.Client != Nemesis {
		if s.Old = f[len(f)-1] == "old"; s.Old {
			f = f[:len(f)-1]
		}
		s.Call, err = model.ParseCall(f[2], f[3:])
		return s, err
	}
	s.Act = f[2]
	if !slices.Contains([]string{Crash, Both, Executor, Restart, Fail, Block}, s.Act) {
		return s, fmt.Errorf("nothing is called %q", s.Act)
	}
	for _, w := range f[3:] {
		n, ok := strings.CutPrefix(w, "step=")
		switch {
		case w == "after":
			s.After = true
		case ok:
			s.Step, err = strconv.Atoi(n)
		default:
			err = fmt.Errorf("unknown word %q", w)
		}
		if err != nil {
			return s, err
		}
	}
	return s, nil
}
