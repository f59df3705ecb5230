package oci

import "time"

// An EventKind is the kind of an event.
type EventKind uint8

const (
	SandboxCreated   EventKind = iota // became Ready
	SandboxStopped                    // became NotReady
	SandboxRemoved                    // can no longer be found
	ContainerCreated                  // can be found
	ContainerStarted                  // its program runs
	ContainerExited                   // its exit is on disk
	ContainerRemoved                  // can no longer be found
	ContainerOOM                      // the OOM killer killed a process of it
)

// An Event is one thing that happened to one object. Events of one object come in the order in
// which they happened. The object stays readable after its removal.
type Event struct {
	Kind      EventKind
	Sandbox   *Sandbox   // nil only for a container whose sandbox's record was lost
	Container *Container // nil for events of sandboxes
	At        time.Time
}

func (r *Runtime) emit(e Event) {
	if r.o.OnEvent != nil {
		r.o.OnEvent(e)
	}
}
