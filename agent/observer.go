package agent

import (
	"context"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/source"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// An Embedding is what a program adds to the agent that it runs. Each part may be nil.
type Embedding struct {
	Source   source.Source // of objects, beside the manifests' (manifest.SourceAPI)
	Observer Observer
	Sockets  Sockets
}

// An Observer is told what happens to pods, by the loop and by workers, which wait for it.
type Observer interface {
	// Seen is called when a pod is wanted that was not, or not by this agent.
	Seen(*v1.Pod)
	// Observe is called when a worker begins to observe its pod, or to compute its status, and done at
	// the end. The pod is nil if it is no longer wanted.
	Observe(*v1.Pod) (done func())
	// Act is called when a worker begins an action for its pod, which may be nil, and done at the
	// end. The contexts are those of the action, and may be replaced.
	Act(ctx, interrupt context.Context, pod *v1.Pod, a podsync.Action) (actx, ainterrupt context.Context, done func(error))
	// Status is called with each status of a wanted pod, and with the last failures of actions for
	// it, before they are saved.
	Status(*v1.Pod, *v1.PodStatus, map[string]podsync.Failure)
	// Changed is called when clients may see a change of anything but events and the node. If that is
	// the status of a pod that a worker has saved, pod is not nil.
	Changed(pod *v1.Pod)
	// Ended is called when nothing is left of a pod that was being deleted.
	Ended(podsync.Key, types.UID)
}

// Sockets restores the sockets at which the agent is served, if they were removed, and returns
// their paths.
type Sockets interface {
	Look() (again []string, err error)
}

// unobserved is the observer of an agent without one.
type unobserved struct{}

func (unobserved) Seen(*v1.Pod)                 {}
func (unobserved) Observe(*v1.Pod) func()       { return func() {} }
func (unobserved) Changed(*v1.Pod)              {}
func (unobserved) Ended(podsync.Key, types.UID) {}

func (unobserved) Act(ctx, interrupt context.Context, _ *v1.Pod, _ podsync.Action) (context.Context, context.Context, func(error)) {
	return ctx, interrupt, func(error) {}
}

func (unobserved) Status(*v1.Pod, *v1.PodStatus, map[string]podsync.Failure) {}
