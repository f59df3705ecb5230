package status

import (
	"cmp"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// setPhase sets the phase from the containers. A final phase stays, with its reason, and a
// verdict or a missed deadline overrides the containers.
func (g *generator) setPhase(s *v1.PodStatus) {
	at, limited := podsync.Deadline(g.pod, s)
	switch v := g.have.Verdict; {
	case podsync.Terminal(g.old):
		s.Phase, s.Reason, s.Message = g.old.Phase, g.old.Reason, g.old.Message
		return
	case v != nil:
		s.Phase, s.Reason, s.Message = v1.PodFailed, v.Reason, v.Message
		return
	case g.pod.Annotations[podsync.AnnotationEnded] != "":
		s.Phase, s.Reason = v1.PodFailed, g.pod.Annotations[podsync.AnnotationEnded]
		s.Message = "Pod was ended because its workload has failed: " + s.Reason
		return
	case limited && !at.After(g.now):
		s.Phase, s.Reason, s.Message = v1.PodFailed, deadlineExceeded, "Pod was active on the node longer than the specified deadline"
		return
	}
	if g.have.Stop.On() {
		g.stopped(s)
		return
	}
	s.Phase = g.phase(slices.Concat(s.ContainerStatuses, s.InitContainerStatuses))
	if f, ok := g.have.Failures[podsync.SandboxSubject]; ok && s.Phase == v1.PodPending {
		s.Reason, s.Message = f.Reason, f.Message
	}
}

// stopped sets the phase of a pod that was stopped on request: Running if it has containers,
// since they run again when the pod is started, else Pending.
func (g *generator) stopped(s *v1.PodStatus) {
	s.Phase = v1.PodPending
	if slices.ContainsFunc(g.have.Containers, func(c podsync.Container) bool { return g.mine(c.UID) }) {
		s.Phase = v1.PodRunning
	}
	if !g.have.Alive(string(g.pod.UID)) {
		s.Reason, s.Message = podsync.StoppedReason, "Pod was stopped on request at "+g.have.Stop.Since.UTC().Format(time.RFC3339)
	}
}

// A tally counts containers by state.
type tally struct {
	running, waiting, stopped, succeeded, lasting int // lasting: stopped for good
	unstarted                                     int // sidecars that have not started yet
}

// ended returns how a container ended; nil if it runs or never ran.
func ended(s *v1.ContainerStatus) *v1.ContainerStateTerminated {
	switch {
	case s.State.Terminated != nil:
		return s.State.Terminated
	case s.State.Waiting != nil:
		return s.LastTerminationState.Terminated
	}
	return nil
}

// restarts reports whether a container that ended with end must run again.
func (g *generator) restarts(c *v1.Container, end *v1.ContainerStateTerminated) bool {
	return podsync.Restarts(&g.pod.Spec, c, end.ExitCode) || g.interrupted(end)
}

// interrupted reports whether a container was ended in order to restart, whatever its policy.
func (g *generator) interrupted(end *v1.ContainerStateTerminated) bool {
	return end.Reason == restartingAll || g.have.Stop.Interrupted(end.StartedAt.Time, end.FinishedAt.Time)
}

// phase returns the phase from the statuses of the containers. all has one for each container
// and init container of the spec.
func (g *generator) phase(all []v1.ContainerStatus) v1.PodPhase {
	if g.restarting && g.pod.DeletionTimestamp == nil { // the containers' ends do not count
		return cmp.Or(g.old.Phase, v1.PodRunning)
	}
	pending := false
	var t tally
	for i := range g.pod.Spec.InitContainers {
		c := &g.pod.Spec.InitContainers[i]
		s := podsync.StatusOf(c.Name, all)
		end := ended(s)
		switch {
		case podsync.IsSidecar(c):
			t.sidecar(s)
		case end == nil:
			pending = true
		case podsync.InitFailed(end.ExitCode, end.Reason) && !podsync.RestartsInit(&g.pod.Spec, c, end.ExitCode, end.Reason) && !g.interrupted(end):
			return v1.PodFailed
		}
	}
	for i := range g.pod.Spec.Containers {
		c := &g.pod.Spec.Containers[i]
		s := podsync.StatusOf(c.Name, all)
		switch end := ended(s); {
		case s.State.Running != nil:
			t.running++
		case end == nil:
			t.waiting++
		default:
			t.stopped++
			if !g.restarts(c, end) {
				t.lasting++
			}
			// As in the kubelet, a container that waits for its restart does not
			// count as succeeded.
			if s.State.Terminated != nil && end.ExitCode == 0 {
				t.succeeded++
			}
		}
	}
	switch {
	case pending, t.unstarted > 0 && !g.active(), t.waiting > 0:
		return v1.PodPending
	case t.running > 0:
		return v1.PodRunning
	case t.stopped > 0:
		return t.stoppedPhase(g.pod.DeletionTimestamp != nil)
	}
	return v1.PodPending
}

func (t *tally) sidecar(s *v1.ContainerStatus) {
	switch {
	case s.State.Running != nil:
		t.running++
		if !ptr.Deref(s.Started, false) {
			t.unstarted++
		}
	case s.State.Waiting != nil && s.LastTerminationState.Terminated == nil:
		t.unstarted++
		t.waiting++
	}
}

// stoppedPhase returns the phase of a pod whose containers have all stopped.
func (t *tally) stoppedPhase(deleted bool) v1.PodPhase {
	switch {
	case !deleted && t.lasting < t.stopped:
		return v1.PodRunning // something is about to start again
	case t.stopped == t.succeeded:
		return v1.PodSucceeded
	}
	return v1.PodFailed
}

// active reports whether a regular container has started in the pod's sandbox.
func (g *generator) active() bool {
	sb, _ := g.sandbox()
	return slices.ContainsFunc(g.pod.Spec.Containers, func(spec v1.Container) bool {
		return slices.ContainsFunc(g.of(spec.Name), func(c podsync.Container) bool {
			return c.SandboxID == sb.ID && (c.State == podsync.Running || c.State == podsync.Exited)
		})
	})
}
