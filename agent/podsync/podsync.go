// Package podsync decides what to do for a pod. Its core is one pure function, Compute: from the
// wanted state, the existing state and the time it computes the next actions. Nothing here
// waits, does I/O or keeps state.
//
// A worker (agent/worker) loops: observe, Compute, act, observe again. So a plan has only
// actions that can be done now, in one step; steps that depend on their outcome are left to the
// next Compute. An agent that was killed between two actions needs no recovery: the next one
// observes and continues.
//
//	          others of this name? ── end them
//	                   │ none
//	not wanted ◀───────┼──▶ being deleted ── end it
//	   gone            │
//	                   ├──▶ Failed or Succeeded ── stop what runs, release its resources
//	                   ├──▶ stopped on request ── stop what runs
//	                   ├──▶ no sandbox, or a wrong one ── stop all, run a new one
//	                   ▼
//	   ephemeral · init and sidecars · containers · end or resize
//
// The rules are the kubelet's. State that must outlive the agent is kept with the objects in the
// runtime or in the pod's directory, never here: the attempt of a container is its restart
// count, and the back-off before its start is one of its annotations.
package podsync

import (
	"cmp"
	"time"

	v1 "k8s.io/api/core/v1"
)

// A Key names a pod regardless of its UID: an edited manifest is another pod with the same
// Key.
type Key struct{ Namespace, Name string }

func (k Key) String() string { return k.Namespace + "/" + k.Name }

func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Namespace, other.Namespace), cmp.Compare(k.Name, other.Name))
}

func KeyOf(pod *v1.Pod) Key { return Key{pod.Namespace, pod.Name} }

// Have is the existing state under one Key, of any UID, each list newest first.
type Have struct {
	Sandboxes  []Sandbox
	Containers []Container
	// Files are the UIDs that have files on this node: volumes, hosts file.
	Files []string
	// Ending has those of Files that are being ended because they were not wanted. If such a pod
	// is wanted again, it first ends completely and then starts over.
	Ending []string
	// HasResources says that the wanted pod may have volumes, a cgroup and user IDs.
	HasResources bool
	// Scarce says that disk space is short: dead containers are removed earlier.
	Scarce bool
	// Accepted has the pods of Files as they were accepted, by UID: a pod that is no longer
	// wanted is ended by this spec.
	Accepted map[string]*v1.Pod
	// Logs counts the attempts of the wanted pod's containers that have left a log, by name: the
	// restart count of a container that the runtime has lost.
	Logs map[string]uint32
	// Actual has the resources last given to the runtime, by name of the wanted pod's container.
	Actual map[string]v1.ResourceRequirements
	// Resizing says that a resize of the wanted pod has begun and not ended.
	Resizing bool

	// Failures has the recent failures, by Action.Subject. An action on the same subject waits
	// for Until. The worker keeps them, not the runtime.
	Failures map[string]Failure
	// Restarted has the IDs of containers that were stopped in order to restart. The worker
	// keeps them too.
	Restarted map[string]bool
	// Restart has the IDs of containers to restart on request, with the grace period of the
	// request; nil is the pod's own. The worker keeps them too.
	Restart map[string]*time.Duration
	// Stop is the last stop of the wanted pod on request; nil if there was none, or if all
	// containers that it interrupted run again.
	Stop *Stop
	// Update is the condition ImageUpdated of the wanted pod; nil if it has none.
	Update *v1.PodCondition
	// Verdict ends the wanted pod for good; nil = it goes on.
	Verdict *Verdict
	// Pending says why a resize of the wanted pod is not done; nil if none is pending.
	Pending *Pending
	// Probes has the results of the probes of the wanted pod's containers, by container ID.
	Probes map[string]Probes
	// Status is the last status of the wanted pod; nil before there is one.
	Status *v1.PodStatus
}

// ImageUpdated is the type of the condition that tells of a pod's last update by its annotation
// (autoupdate): True if it runs the image, False if it was rolled back, Unknown meanwhile.
const ImageUpdated v1.PodConditionType = "ImageUpdated"

type Failure struct {
	Reason  string // one CamelCase word, as in a container's waiting state
	Message string
	At      time.Time // when it failed
	Until   time.Time // earliest time of the next try
}

// A Verdict ends a pod as Failed: it is evicted, preempted or not admitted.
type Verdict struct {
	Reason    string // one CamelCase word, for status.reason
	Message   string
	Condition *v1.PodCondition // added to the status if not nil
	Grace     *int64           // seconds for its containers to end; nil is their own grace period
	Rejected  bool             // the pod was not admitted; Pool.Reject sets it
}

// A Pending says why a resize is not done. Reason is v1.PodReasonDeferred or
// v1.PodReasonInfeasible.
type Pending struct{ Reason, Message string }

type Result uint8

const (
	Unknowable Result = iota // there is no result yet
	Success
	Failing
)

// Probes are the results of one container's probes.
type Probes struct{ Startup, Liveness, Readiness Result }

type Sandbox struct {
	ID          string
	UID         string // of the pod
	Attempt     uint32
	Ready       bool
	HostNetwork bool
	IPs         []string // primary first; none on the host's network
	CreatedAt   time.Time
}

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
	Attempt   uint32 // number of earlier containers of this name
	State     State

	CreatedAt, StartedAt, FinishedAt time.Time

	ExitCode        int32
	Reason, Message string

	Image   string // as in the manifest
	ImageID string // the runtime's ImageRef
	LogPath string

	Hash    string        // Hash of its spec when it was created; "" if unknown
	Grace   time.Duration // between SIGTERM and SIGKILL, as promised when it was created
	Backoff time.Duration // before its start; see nextBackoff
	// MaxBackoff bounds the back-off of its successor; 0 is DefaultMaxBackoff.
	MaxBackoff time.Duration

	Resources *v1.ResourceRequirements // as the runtime reports them; nil if it does not
	User      *v1.ContainerUser
}

// A Verb says what an Action does. Beside each are the fields that it uses.
type Verb uint8

const (
	StopContainer   Verb = iota + 1 // ID, Name, Grace, After, Restart
	RemoveContainer                 // ID, Name, Logs
	StopSandbox                     // ID
	RemoveSandbox                   // ID
	ForgetFiles                     // UID
	Release                         // UID: release volumes, cgroup and user IDs; logs and records stay
	RunSandbox                      // Attempt, ID of the sandbox before it, "" for none: stop that once more
	StartContainer                  // Name, Attempt, SandboxID, Backoff, Target: pull, create and start
	Resize                          // SandboxID: resize all containers
)

var verbs = map[Verb]string{
	StopContainer: "stop container", RemoveContainer: "remove container", StopSandbox: "stop sandbox",
	RemoveSandbox: "remove sandbox", ForgetFiles: "forget files", Release: "release", RunSandbox: "run sandbox", StartContainer: "start container",
	Resize: "resize",
}

func (v Verb) String() string { return verbs[v] }

// An Action is one step of a plan. UID and Why are always set, the others as Verb says.
type Action struct {
	Verb      Verb
	ID        string
	UID       string
	Name      string
	SandboxID string
	Attempt   uint32
	Grace     time.Duration // until SIGKILL, the preStop hook included
	After     []string      // IDs of containers that must have ended before this one is stopped
	Restart   bool          // the container is stopped in order to restart
	Logs      int           // how many runs of the container keep their logs; 0 is all
	Backoff   time.Duration
	Target    string // ID of the container whose processes an ephemeral container sees
	Why       string // for the log and for the pod's events
}

// Subject identifies the object of the action. A failure delays only actions on the same
// subject.
func (a Action) Subject() string {
	switch a.Verb {
	case RunSandbox:
		return SandboxSubject
	case StartContainer:
		return ContainerSubject(a.Name)
	case ForgetFiles, Release:
		return "files " + a.UID
	case Resize:
		return ResizeSubject
	}
	return a.Verb.String() + " " + a.ID
}

// Subjects whose failures appear in a pod's status, as those of ContainerSubject do.
const (
	SandboxSubject = "sandbox"
	ResizeSubject  = "resize"
)

func ContainerSubject(name string) string { return "container " + name }

type Plan struct {
	// Actions are done in order. When one fails, the later ones on its Subject are delayed
	// and the others are still done.
	Actions []Action
	// Again is when to compute again even if nothing has changed; zero is never.
	Again time.Time
	// Gone means that the pod is not wanted, or being deleted, and that nothing of it is
	// left.
	Gone bool
}
