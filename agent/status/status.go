// Package status makes the v1.PodStatus of a pod from the existing state, from recent failures
// of the agent, from the results of probes and from the previous status. Of is pure: the same
// input always makes the same status, so the command line can make it while no agent runs. The
// rules are the kubelet's.
//
// The previous status matters: a failed pod stays failed, a container that the runtime no longer
// has keeps its restart count, and one that was ready before a restart of the agent is ready
// until its probe says otherwise.
package status

import (
	"cmp"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubectl/pkg/util/qos"
)

// A Node has the node's part of a pod's status.
type Node struct {
	Runtime string   // the prefix of container IDs, CRI's runtime name
	HostIPs []string // primary first
}

// deadlineExceeded is the reason of a pod that has missed its deadline.
const deadlineExceeded = "DeadlineExceeded"

// Of returns the status of pod at the time now. old is the previous one, nil if there is none.
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

// ending reports whether the pod starts no more containers: it is being deleted, or is over.
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

// QOS returns the pod's quality of service: Guaranteed if every container has limits of CPU and
// memory and equal requests, BestEffort if no container has a request or limit of either, and
// otherwise Burstable. The resources of the pod as a whole override its containers'.
func QOS(pod *v1.Pod) v1.PodQOSClass {
	return qos.ComputePodQOS(pod)
}
