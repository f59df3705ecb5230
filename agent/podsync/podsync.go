// Package podsync decides what has to be done for a pod. It is one pure
// function, Compute: what is wanted, what the runtime has, and the time go in,
// the next actions come out. Nothing here waits, calls or remembers.
//
// A worker (agent/worker) loops: observe, Compute, act, observe again. So a plan
// holds only what can be done now, in one stage; what depends on its outcome is
// found by the next Compute. An agent that was killed between two actions needs
// no recovery: the next one observes and goes on.
//
// What must outlive the agent is on the objects in the runtime, never here: the
// attempt of a container is its restart count, and the back-off that preceded
// its start is an annotation on it.
package podsync

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// A Key names a pod, whatever its UID: an edited manifest is another pod with
// the same Key.
type Key struct{ Namespace, Name string }

func (k Key) String() string { return k.Namespace + "/" + k.Name }

// KeyOf returns the Key of a pod.
func KeyOf(pod *v1.Pod) Key { return Key{pod.Namespace, pod.Name} }

// Have is what exists under one Key, of any UID, each list newest first.
type Have struct {
	Sandboxes  []Sandbox
	Containers []Container
	// Files are the UIDs that have files on this node: volumes, hosts file.
	Files []string
	// Failures are what went wrong lately and may not be tried before Until,
	// by Action.Subject. They are the worker's, not the runtime's.
	Failures map[string]Failure
}

// A Failure is an action that failed.
type Failure struct {
	Reason  string // one CamelCase word, as in a container's waiting state
	Message string
	Until   time.Time // earliest time of the next try
}

// A Sandbox is one sandbox of the pod.
type Sandbox struct {
	ID          string
	UID         string // of the pod
	Attempt     uint32
	Ready       bool
	HostNetwork bool
	IPs         []string // primary first; none on the host's network
	CreatedAt   time.Time
}

// State is where a container is in its life.
type State uint8

const (
	Unknown State = iota
	Created
	Running
	Exited
)

// A Container is one container of the pod, alive or dead.
type Container struct {
	ID        string
	UID       string // of the pod
	SandboxID string
	Name      string
	Attempt   uint32 // how many containers of this name came before it
	State     State

	CreatedAt, StartedAt, FinishedAt time.Time

	ExitCode        int32
	Reason, Message string

	Image   string // as the manifest has it
	ImageID string
	LogPath string

	Grace   time.Duration // it was promised between SIGTERM and SIGKILL
	Backoff time.Duration // was waited before it started; see nextBackoff
}

// A Verb says what an Action does.
type Verb uint8

const (
	StopContainer   Verb = iota + 1 // ID; Grace
	RemoveContainer                 // ID
	StopSandbox                     // ID
	RemoveSandbox                   // ID
	ForgetFiles                     // UID
	RunSandbox                      // Attempt
	StartContainer                  // Name, Attempt, SandboxID, Backoff: image, create and start
)

var verbs = map[Verb]string{
	StopContainer: "stop container", RemoveContainer: "remove container", StopSandbox: "stop sandbox",
	RemoveSandbox: "remove sandbox", ForgetFiles: "forget files", RunSandbox: "run sandbox", StartContainer: "start container",
}

func (v Verb) String() string { return verbs[v] }

// An Action is one thing to do. Which fields are set depends on Verb.
type Action struct {
	Verb      Verb
	ID        string
	UID       string
	Name      string
	SandboxID string
	Attempt   uint32
	Grace     time.Duration
	Backoff   time.Duration
	Why       string // for the log
}

// Subject is what a failure of the action is booked on: retries are held back
// for this subject, and nothing else.
func (a Action) Subject() string {
	switch a.Verb {
	case RunSandbox:
		return "sandbox"
	case StartContainer:
		return ContainerSubject(a.Name)
	case ForgetFiles:
		return "files " + a.UID
	}
	return a.Verb.String() + " " + a.ID
}

// ContainerSubject is the Subject of starting the container of this name.
func ContainerSubject(name string) string { return "container " + name }

// A Plan is what to do next.
type Plan struct {
	// Actions are independent of each other but for their order: those of a
	// failed action's Subject are held back, the others are still done.
	Actions []Action
	// Again is when to compute anew although nothing has changed; zero: never.
	Again time.Time
	// Gone means that the pod is not wanted and nothing of it is left.
	Gone bool
}
