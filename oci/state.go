package oci

import (
	"fmt"
	"slices"
)

// A State is a stage in a container's life. The -ing states also say that one goroutine is at
// work on it: a long operation is a state, never a held lock.
//
//	          start           started          stop
//	Created ─────────▶ Starting ──────▶ Running ──────▶ Stopping
//	   │                   │               │               │
//	   │ remove            └───────────────┴───────┬───────┘
//	   ▼                   remove                  ▼ exited
//	Removing ◀────────────────────────────────── Exited
//
// Stop is also legal while Starting; the starter then finds that it lost. recover.go says what
// each state means after a crash, one case per State.
type State uint8

const (
	Created State = iota
	Starting
	Running
	Stopping
	Exited
	Removing
)

var stateNames = [...]string{"created", "starting", "running", "stopping", "exited", "removing"}

func (s State) String() string { return nameOf(stateNames[:], s) }

// MarshalText writes words instead of numbers to status.json.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (s *State) UnmarshalText(text []byte) error { return valueOf(stateNames[:], text, s) }

// An event takes a container from one State to the next.
type event uint8

const (
	start event = iota
	started
	stop
	exited
	remove
)

var eventNames = [...]string{"start", "started", "stop", "exited", "remove"}

func (e event) String() string { return nameOf(eventNames[:], e) }

// next is the complete state machine: a move that is not listed is forbidden. Repeated stops and
// removals are listed because CRI requires idempotence; started while Stopping is the starter
// that lost, and only records what it started.
var next = map[State]map[event]State{
	Created:  {start: Starting, remove: Removing},
	Starting: {started: Running, stop: Stopping, exited: Exited},
	Running:  {stop: Stopping, exited: Exited},
	Stopping: {started: Stopping, stop: Stopping, exited: Exited},
	Exited:   {remove: Removing},
	Removing: {remove: Removing},
}

// A SandboxState is a stage in a sandbox's life.
//
//	Creating ──ready──▶ Ready ⟲ adopt
//	   │                  │
//	   │ stop             │ stop
//	   ├───────▶ Stopping ◀
//	   │             │ stopped
//	   │ remove      ▼
//	   │          NotReady
//	   ▼             │ remove
//	Removing ◀───────┘
//
// A sandbox adopts a container only while it is Ready, so whoever made it Stopping finds all of
// its containers in one walk.
type SandboxState uint8

const (
	SandboxCreating SandboxState = iota // not listed; found by its ID
	SandboxReady
	SandboxStopping
	SandboxNotReady
	SandboxRemoving
)

var sandboxStateNames = [...]string{"creating", "ready", "stopping", "not ready", "removing"}

func (s SandboxState) String() string { return nameOf(sandboxStateNames[:], s) }

// MarshalText writes words instead of numbers to status.json.
func (s SandboxState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (s *SandboxState) UnmarshalText(text []byte) error {
	return valueOf(sandboxStateNames[:], text, s)
}

// A sandboxEvent takes a sandbox from one SandboxState to the next.
type sandboxEvent uint8

const (
	sandboxReady sandboxEvent = iota
	sandboxAdopt
	sandboxStop
	sandboxStopped
	sandboxRemove
)

var sandboxEventNames = [...]string{"ready", "adopt", "stop", "stopped", "remove"}

func (e sandboxEvent) String() string { return nameOf(sandboxEventNames[:], e) }

// sandboxNext is the complete state machine of a sandbox. Stop and stopped may be repeated: CRI
// wants StopPodSandbox to be called many times.
var sandboxNext = map[SandboxState]map[sandboxEvent]SandboxState{
	SandboxCreating: {sandboxReady: SandboxReady, sandboxStop: SandboxStopping, sandboxRemove: SandboxRemoving},
	SandboxReady:    {sandboxAdopt: SandboxReady, sandboxStop: SandboxStopping},
	SandboxStopping: {sandboxStop: SandboxStopping, sandboxStopped: SandboxNotReady},
	SandboxNotReady: {sandboxStop: SandboxNotReady, sandboxStopped: SandboxNotReady, sandboxRemove: SandboxRemoving},
	SandboxRemoving: {sandboxRemove: SandboxRemoving},
}

func nameOf[T ~uint8](names []string, v T) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%d?", v)
}

func valueOf[T ~uint8](names []string, text []byte, v *T) error {
	i := slices.Index(names, string(text))
	if i < 0 {
		return fmt.Errorf("unknown state %q", text)
	}
	*v = T(i)
	return nil
}
