// Package status makes the v1.PodStatus of a pod: from what the runtime has and
// from what the agent could not do lately. It is pure; the same input always
// gives the same status, so the command line can make it while no agent runs.
package status

import (
	"cmp"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Node is what a status says of the node.
type Node struct {
	Runtime string   // the prefix of container IDs, CRI's runtime name
	HostIPs []string // primary first
}

// Of returns the status of pod at the time now.
func Of(pod *v1.Pod, have podsync.Have, node Node, now time.Time) v1.PodStatus {
	g := generator{pod: pod, have: have, node: node, now: now}
	s := v1.PodStatus{
		InitContainerStatuses: g.containers(pod.Spec.InitContainers, true),
		ContainerStatuses:     g.containers(pod.Spec.Containers, false),
	}
	s.Phase = g.phase(s)
	s.Conditions = g.conditions(s)
	g.addresses(&s)
	if first := g.firstSeen(); !first.IsZero() {
		s.StartTime = &metav1.Time{Time: first}
	}
	if f, ok := have.Failures["sandbox"]; ok && s.Phase == v1.PodPending {
		s.Reason, s.Message = f.Reason, f.Message
	}
	return s
}

type generator struct {
	pod  *v1.Pod
	have podsync.Have
	node Node
	now  time.Time
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

// firstSeen is when the runtime first heard of the pod.
func (g *generator) firstSeen() time.Time {
	var first time.Time
	for _, sb := range g.have.Sandboxes {
		if g.mine(sb.UID) && (first.IsZero() || sb.CreatedAt.Before(first)) {
			first = sb.CreatedAt
		}
	}
	return first
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
	if ok && g.pod.Spec.HostNetwork {
		ips = g.node.HostIPs
	}
	for _, ip := range ips {
		s.PodIPs = append(s.PodIPs, v1.PodIP{IP: ip})
	}
	if len(ips) > 0 {
		s.PodIP = ips[0]
	}
}

func (g *generator) containers(specs []v1.Container, init bool) []v1.ContainerStatus {
	var list []v1.ContainerStatus
	for i := range specs {
		list = append(list, g.container(&specs[i], init))
	}
	return list
}

func (g *generator) container(spec *v1.Container, init bool) v1.ContainerStatus {
	s := v1.ContainerStatus{Name: spec.Name, Image: spec.Image}
	all := g.of(spec.Name)
	started := false
	if len(all) == 0 {
		s.State.Waiting = g.waiting(spec.Name)
		s.Started = &started
		return s
	}
	c := all[0]
	s.ContainerID = g.id(c)
	s.Image, s.ImageID = cmp.Or(c.Image, spec.Image), c.ImageID
	s.RestartCount = int32(c.Attempt)
	switch c.State {
	case podsync.Running:
		started = true
		s.State.Running = &v1.ContainerStateRunning{StartedAt: metav1.Time{Time: c.StartedAt}}
		s.Ready = !init // there are no probes yet: what runs is ready
	case podsync.Exited:
		s.State.Terminated = g.terminated(c)
		s.Ready = init && c.ExitCode == 0
		g.exited(&s, c, init)
	default:
		s.State.Waiting = g.waiting(spec.Name)
	}
	if len(all) > 1 && s.LastTerminationState.Terminated == nil && all[1].State == podsync.Exited {
		s.LastTerminationState.Terminated = g.terminated(all[1])
	}
	s.Started = &started
	return s
}

// exited makes a container that is to run again a waiting one, with its end as
// its last state.
func (g *generator) exited(s *v1.ContainerStatus, c podsync.Container, init bool) {
	again := !init || c.ExitCode != 0
	switch g.pod.Spec.RestartPolicy {
	case v1.RestartPolicyNever:
		again = false
	case v1.RestartPolicyOnFailure:
		again = c.ExitCode != 0
	}
	if !again {
		return
	}
	f, failed := g.have.Failures[podsync.ContainerSubject(c.Name)]
	switch {
	case failed && f.Reason != "RunContainerError":
		s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: f.Reason, Message: f.Message}}
	case podsync.CrashLoop(c, g.now):
		s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: crashText(c)}}
	default:
		return
	}
	s.LastTerminationState.Terminated = g.terminated(c)
}

func crashText(c podsync.Container) string {
	return "back-off before restarting container " + c.Name + " until " + podsync.RestartAt(c).UTC().Format(time.RFC3339)
}

// waiting says why a container that does not exist does not exist.
func (g *generator) waiting(name string) *v1.ContainerStateWaiting {
	if f, ok := g.have.Failures[podsync.ContainerSubject(name)]; ok {
		reason := f.Reason
		if reason == "ErrImagePull" && f.Until.After(g.now) {
			reason = "ImagePullBackOff"
		}
		return &v1.ContainerStateWaiting{Reason: reason, Message: f.Message}
	}
	if len(g.pod.Spec.InitContainers) > 0 {
		return &v1.ContainerStateWaiting{Reason: "PodInitializing"}
	}
	return &v1.ContainerStateWaiting{Reason: "ContainerCreating"}
}

func (g *generator) terminated(c podsync.Container) *v1.ContainerStateTerminated {
	return &v1.ContainerStateTerminated{
		ExitCode:    c.ExitCode,
		Reason:      c.Reason,
		Message:     c.Message,
		StartedAt:   metav1.Time{Time: c.StartedAt},
		FinishedAt:  metav1.Time{Time: c.FinishedAt},
		ContainerID: g.id(c),
	}
}

func (g *generator) id(c podsync.Container) string {
	return cmp.Or(g.node.Runtime, "cri") + "://" + c.ID
}
