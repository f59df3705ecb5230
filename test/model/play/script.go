// Package play makes histories of package model: it generates scripts for a few
// clients and for what befalls the node meanwhile, plays them on a node by CRI, has
// the model check what the clients saw, and makes a script that fails short.
//
// A script is text, so that what failed once can be kept and played again:
//
//	latency 7
//	round
//	a 0ms run-pod pod=p
//	b 5ms create pod=p container=c patience=20
//	! 1ms crash step=3 after
//	round
//	a 0ms start pod=p container=c
//
// The lines of a round are done side by side, those of one client one after the
// other, each so long after the one before it. The client "!" is what befalls the
// node. A round ends when all have done, the runtime is there again and all has come
// to rest; then everything is looked at. After the last one everything is removed,
// and nothing may be left.
//
// IDs stand in no script: a step is about the object that its client knows best under
// that name, or with "old" about the one before.
package play

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/test/model"
)

// Nemesis is the client that stands for what befalls the node.
const Nemesis = "!"

// What may befall the node.
const (
	Crash    = "crash"    // the runtime dies, at Step if the node can tell steps
	Both     = "both"     // and its executor with it
	Executor = "executor" // that one alone
	Restart  = "restart"  // the runtime is asked to end, and started again
	Fail     = "fail"     // Step fails once
)

// A Step is a line of a script.
type Step struct {
	Client string
	Delay  time.Duration
	Call   model.Call // without IDs
	Old    bool       // about the object before the one that is known now

	// Of the Nemesis.
	Act   string
	Step  int  // counted from here, from 1; of Crash, Both and Fail
	After bool // once it has taken effect, else instead
}

// A Round is what is done at once.
type Round []Step

// A Script is a whole history to be made.
type Script struct {
	Latency uint64 // seed of how long what takes, where the node can choose
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

// Parse is the inverse of Script.String. Lines that begin with "#" are left out.
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
	if !slices.Contains([]string{Crash, Both, Executor, Restart, Fail}, s.Act) {
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
