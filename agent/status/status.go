// Package status makes the v1.PodStatus of a pod from the existing state, from recent failures
// of the agent, from the results of probes and from the previous status. Of is pure: the same
// input always makes the same status, so the command line can make it while no agent runs. The
// rules are the kubelet's.
//
// The previous status matters: a failed pod stays failed, a container that the runtime no longer
// has keeps its restart count, and one that was ready before a restart of the agent is ready
// until its probe says otherwise.
//
// The package also keeps the other record of what became of pods: the Kubernetes events of this
// node, without an API server (EventStore).
package status

import (
	"cmp"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubectl/pkg/util/qos"
	"k8s.io/utils/ptr"
)

// A Node has the node's part of a pod's status.
type Node struct {
	Runtime string   // the prefix of container IDs, CRI's runtime name
	HostIPs []string // primary first
}

const deadlineExceeded = "DeadlineExceeded"

// Of returns the status of pod at the time now. old is the previous one, nil for the first.
func Of(pod *v1.Pod, have podsync.Have, old *v1.PodStatus, node Node, now time.Time) v1.PodStatus {
	if old == nil {
		old = &v1.PodStatus{}
	}
	g := generator{pod: pod, have: have, old: old, node: node, now: now}
	// Once the containers that caused it are removed, only the old condition shows it.
	g.restarting = !g.ending() && (podsync.RestartsAll(pod, have) || isTrue(old.Conditions, v1.AllContainersRestarting))
	s := v1.PodStatus{ObservedGeneration: pod.Generation, QOSClass: QOS(pod), StartTime: g.startTime()}
	if !g.rejected() {
		s.InitContainerStatuses = g.containers(pod.Spec.InitContainers, old.InitContainerStatuses, initKind)
		s.ContainerStatuses = g.containers(pod.Spec.Containers, old.ContainerStatuses, regularKind)
		s.EphemeralContainerStatuses = g.containers(podsync.Ephemeral(&pod.Spec), old.EphemeralContainerStatuses, ephemeralKind)
	}
	g.addresses(&s)
	g.setPhase(&s)
	if !g.rejected() {
		s.Conditions = g.conditions(s)
	}
	return s
}

type generator struct {
	pod  *v1.Pod
	have podsync.Have
	old  *v1.PodStatus
	node Node
	now  time.Time
	// restarting says that all containers are being removed, or have just been, so that the pod
	// starts over.
	restarting bool
}

func (g *generator) mine(uid string) bool { return uid == string(g.pod.UID) }

// of returns the containers of this name, newest first.
func (g *generator) of(name string) []podsync.Container {
	var list []podsync.Container
	for _, c := range g.have.Containers {
		if c.Name == name && g.mine(c.UID) {
			list = append(list, c)
		}
	}
	return list
}

func (g *generator) sandbox() (podsync.Sandbox, bool) {
	for _, sb := range g.have.Sandboxes {
		if g.mine(sb.UID) {
			return sb, true
		}
	}
	return podsync.Sandbox{}, false
}

// startTime returns when the agent first saw the pod, or when its first sandbox was created if
// that was earlier, in whole seconds.
func (g *generator) startTime() *metav1.Time {
	if g.old.StartTime != nil {
		return g.old.StartTime
	}
	first := g.now
	for _, sb := range g.have.Sandboxes {
		if g.mine(sb.UID) && !sb.CreatedAt.IsZero() && sb.CreatedAt.Before(first) {
			first = sb.CreatedAt
		}
	}
	return &metav1.Time{Time: first.Truncate(time.Second)}
}

func (g *generator) addresses(s *v1.PodStatus) {
	for _, ip := range g.node.HostIPs {
		s.HostIPs = append(s.HostIPs, v1.HostIP{IP: ip})
	}
	if len(g.node.HostIPs) > 0 {
		s.HostIP = g.node.HostIPs[0]
	}
	sb, ok := g.sandbox()
	ips := sb.IPs
	switch {
	case ok && g.pod.Spec.HostNetwork:
		ips = g.node.HostIPs
	case !sb.Ready && g.ending(): // the addresses that it had while it ran
		s.PodIP, s.PodIPs = g.old.PodIP, g.old.PodIPs
		return
	}
	for _, ip := range ips {
		s.PodIPs = append(s.PodIPs, v1.PodIP{IP: ip})
	}
	if len(ips) > 0 {
		s.PodIP = ips[0]
	}
}

func (g *generator) ending() bool {
	return g.pod.DeletionTimestamp != nil || g.have.Verdict != nil || podsync.Terminal(g.old)
}

// rejected reports whether the pod was not admitted, so that it has no containers.
func (g *generator) rejected() bool {
	v := g.have.Verdict
	return v != nil && v.Rejected || Rejected(g.old)
}

// Rejected reports whether a pod with this status was not admitted.
func Rejected(s *v1.PodStatus) bool {
	return s.Phase == v1.PodFailed && len(s.ContainerStatuses) == 0
}

func (g *generator) id(c podsync.Container) string {
	return cmp.Or(g.node.Runtime, "cri") + "://" + c.ID
}

// QOS returns the pod's quality of service. The resources of the pod as a whole override its
// containers'.
var QOS = qos.ComputePodQOS

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

func (t *tally) stoppedPhase(deleted bool) v1.PodPhase {
	switch {
	case !deleted && t.lasting < t.stopped:
		return v1.PodRunning // something is about to start again
	case t.stopped == t.succeeded:
		return v1.PodSucceeded
	}
	return v1.PodFailed
}

func (g *generator) active() bool {
	sb, _ := g.sandbox()
	return slices.ContainsFunc(g.pod.Spec.Containers, func(spec v1.Container) bool {
		return slices.ContainsFunc(g.of(spec.Name), func(c podsync.Container) bool {
			return c.SandboxID == sb.ID && (c.State == podsync.Running || c.State == podsync.Exited)
		})
	})
}
