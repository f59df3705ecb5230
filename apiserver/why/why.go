// Package why explains why a pod is not ready: what it waits for, from its status (Waits), and
// in one sentence, from its status, its stages and its events (Sentence). It is pure.
package why

import (
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
)

// The names of waits; they are stages of the pod's timeline.
const (
	Queue       = "queue"       // the pod's worker has not begun
	Observe     = "observe"     // the worker asks the runtime for the pod's state
	Predecessor = "predecessor" // another pod of the same name has not ended
	BackOff     = "back-off"    // something has failed, and is retried later
	Init        = "init"        // an init container runs
	Startup     = "startup probe"
	Readiness   = "readiness probe"
)

// A Wait is something that a pod waits for, other than the agent's work for it.
type Wait struct {
	Name      string
	Container string // "" for the pod
	Attempt   uint32 // of the container
	Detail    string // for people
}

// Waits returns what a pod waits for, from its status and the failures of its last actions.
func Waits(pod *v1.Pod, s *v1.PodStatus, failures map[string]podsync.Failure) []Wait {
	if podsync.Terminal(s) || pod.DeletionTimestamp != nil {
		return nil
	}
	var list []Wait
	if f, ok := failures[podsync.SandboxSubject]; ok {
		list = append(list, Wait{Name: BackOff, Detail: f.Reason + ": " + f.Message})
	}
	for i := range s.InitContainerStatuses {
		c := &s.InitContainerStatuses[i]
		sidecar := i < len(pod.Spec.InitContainers) && podsync.IsSidecar(&pod.Spec.InitContainers[i])
		if w, ok := waitOf(c, sidecar); ok {
			list = append(list, w)
			if !sidecar {
				return list // the other containers start after it
			}
		}
	}
	for i := range s.ContainerStatuses {
		if w, ok := waitOf(&s.ContainerStatuses[i], true); ok && !slices.Contains(list, w) {
			list = append(list, w)
		}
	}
	return list
}

// waitOf returns what a container waits for. While an init container that does not last runs, it
// is itself the wait.
func waitOf(c *v1.ContainerStatus, lasts bool) (Wait, bool) {
	w := Wait{Container: c.Name, Attempt: uint32(c.RestartCount)}
	switch {
	case c.State.Waiting != nil:
		reason := c.State.Waiting.Reason
		switch reason {
		case "", "ContainerCreating", "PodInitializing":
			return w, false
		case "PredecessorTerminating":
			return Wait{Name: Predecessor, Detail: c.State.Waiting.Message}, true
		}
		w.Name, w.Detail = BackOff, strings.TrimSuffix(reason+": "+c.State.Waiting.Message, ": ")
		return w, true
	case c.State.Running == nil:
		return w, false
	case !lasts:
		w.Name = Init
		return w, true
	case c.Started != nil && !*c.Started:
		w.Name = Startup
		return w, true
	case !c.Ready:
		w.Name = Readiness
		return w, true
	}
	return w, false
}
