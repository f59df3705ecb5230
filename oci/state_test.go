package oci

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestMachine pins the whole state machine. A new state or event makes it fail until every new
// pair is decided.
func TestMachine(t *testing.T) {
	const want = `
		.         start     started   stop      exited  remove
		created   starting  -         -         -       removing
		starting  -         running   stopping  exited  -
		running   -         -         stopping  exited  -
		stopping  -         stopping  stopping  exited  -
		exited    -         -         -         -       removing
		removing  -         -         -         -       removing`

	if got := tabulate(next, len(stateNames), len(eventNames)); !slices.Equal(strings.Fields(got), strings.Fields(want)) {
		t.Errorf("the machine is now\n%s\nwant\n%s", got, want)
	}
}

// Only a Ready sandbox adopts; stopping and removing may be repeated.
func TestSandboxMachine(t *testing.T) {
	const want = `
		.          ready  adopt  stop       stopped    remove
		creating   ready  -      stopping   -          removing
		ready      -      ready  stopping   -          -
		stopping   -      -      stopping   not_ready  -
		not_ready  -      -      not_ready  not_ready  removing
		removing   -      -      -          -          removing`

	if got := tabulate(sandboxNext, len(sandboxStateNames), len(sandboxEventNames)); !slices.Equal(strings.Fields(got), strings.Fields(want)) {
		t.Errorf("the machine is now\n%s\nwant\n%s", got, want)
	}
}

func tabulate[S, E interface {
	~uint8
	fmt.Stringer
}](machine map[S]map[E]S, states, events int) string {
	word := func(v fmt.Stringer) string { return strings.ReplaceAll(v.String(), " ", "_") }
	var b strings.Builder
	b.WriteString(".")
	for e := range E(events) {
		b.WriteString(" " + word(e))
	}
	for s := range S(states) {
		b.WriteString("\n" + word(s))
		for e := range E(events) {
			if to, ok := machine[s][e]; ok {
				b.WriteString(" " + word(to))
			} else {
				b.WriteString(" -")
			}
		}
	}
	return b.String()
}

// States are words on disk, and every word can be read back.
func TestStateText(t *testing.T) {
	for s := range State(len(stateNames)) {
		text, err := s.MarshalText()
		var back State
		if err != nil || back.UnmarshalText(text) != nil || back != s {
			t.Errorf("%v became %q and %v (err %v)", s, text, back, err)
		}
	}
	for s := range SandboxState(len(sandboxStateNames)) {
		text, err := s.MarshalText()
		var back SandboxState
		if err != nil || back.UnmarshalText(text) != nil || back != s {
			t.Errorf("%v became %q and %v (err %v)", s, text, back, err)
		}
	}
	if err := new(State).UnmarshalText([]byte("asleep")); err == nil {
		t.Error("took a state that does not exist")
	}
}
