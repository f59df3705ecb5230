package podsync

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Compute returns what to do next for the pod want or, if want is nil, to remove what exists.
func Compute(want *v1.Pod, have Have, now time.Time) Plan {
	if have.Ends(want) {
		want = nil
	}
	p := planner{want: want, have: have, now: now}
	switch {
	case p.clearOthers():
	case want == nil:
		p.plan.Gone = true
	case want.DeletionTimestamp != nil:
		p.plan.Gone = !p.end(string(want.UID), "pod is being deleted")
	case Terminal(have.Status):
		p.settle()
	case p.have.Stop.On():
		// Its containers stay for their logs, and its volumes, cgroup and user IDs for its next start.
		p.stopAll(string(want.UID), "pod is stopped on request")
		p.deadline()
	case !p.sandboxReady():
		p.deadline()
	case p.restartAll():
		p.deadline()
	default:
		p.converge()
		p.deadline()
	}
	p.collect()
	return p.plan
}

// Ends reports whether the pod, which may be nil, must end completely before it starts over.
func (h *Have) Ends(pod *v1.Pod) bool {
	return pod != nil && slices.Contains(h.Ending, string(pod.UID))
}

type planner struct {
	want *v1.Pod
	have Have
	now  time.Time
	plan Plan

	kill    bool // the pod is over: it has failed, or nothing of it should run any more
	kills   int  // containers that are stopped while the pod continues
	keep    int  // regular containers that run and continue
	starts  int  // containers that are started now or after their back-off
	resized bool
}

// add plans an action, unless it must wait because the last one on its subject failed.
func (p *planner) add(a Action) {
	if f, ok := p.have.Failures[a.Subject()]; ok && f.Until.After(p.now) {
		p.again(f.Until)
		return
	}
	p.plan.Actions = append(p.plan.Actions, a)
}

func (p *planner) again(at time.Time) {
	p.plan.Again = Earliest(p.plan.Again, at)
}

// clearOthers plans the end of every pod of this name with another UID and reports whether there
// is one. The wanted pod waits for that: both would use the same host ports and volumes.
func (p *planner) clearOthers() bool {
	wanted := ""
	if p.want != nil {
		wanted = string(p.want.UID)
	}
	others := map[string]bool{}
	for _, sb := range p.have.Sandboxes {
		others[sb.UID] = true
	}
	for _, c := range p.have.Containers {
		others[c.UID] = true
	}
	for _, uid := range p.have.Files {
		others[uid] = true
	}
	delete(others, wanted)
	for _, uid := range slices.Sorted(maps.Keys(others)) {
		p.end(uid, "pod is not wanted any more")
	}
	return len(others) > 0
}

// Terminal reports whether a pod with this status, which may be nil, has ended for good.
func Terminal(s *v1.PodStatus) bool {
	return s != nil && (s.Phase == v1.PodFailed || s.Phase == v1.PodSucceeded)
}

// Ready returns since when a pod has been ready; ok reports whether it is.
func Ready(s *v1.PodStatus) (since time.Time, ok bool) {
	for _, c := range s.Conditions {
		if c.Type == v1.PodReady && c.Status == v1.ConditionTrue {
			return c.LastTransitionTime.Time, true
		}
	}
	return time.Time{}, false
}

// The reasons of pods that end for lack of room on the node; they are the kubelet's.
const (
	EvictedReason   = "Evicted"
	PreemptedReason = "Preempting"
)

// Evicted reports whether a pod with this status, which may be nil, was evicted or preempted while
// its restart policy would have kept it running.
func Evicted(pod *v1.Pod, s *v1.PodStatus) bool {
	return s != nil && s.Phase == v1.PodFailed && (s.Reason == EvictedReason || s.Reason == PreemptedReason) &&
		len(s.ContainerStatuses) > 0 && pod.Spec.RestartPolicy != v1.RestartPolicyNever
}

// settle plans to stop the rest of a pod that is over and to release its resources. Its
// containers stay for their logs and exit codes while there is disk space.
func (p *planner) settle() {
	why := "pod has finished"
	if v := p.have.Verdict; v != nil {
		why = v.Message
	}
	uid := string(p.want.UID)
	if !p.stopAll(uid, why) && p.have.HasResources && Terminal(p.have.Status) {
		p.add(Action{Verb: Release, UID: uid, Why: why})
	}
}

// deadline makes the caller run Compute again when the pod's deadline has passed. The status
// then fails the pod.
func (p *planner) deadline() {
	if at, ok := Deadline(p.want, p.have.Status); ok && at.After(p.now) {
		p.again(at)
	}
}

// PullErrorShown is how long the status shows the error of a pull before it shows the
// back-off.
const PullErrorShown = 2 * time.Second

// Deadline returns when the pod must have ended (spec.activeDeadlineSeconds); false if it has no
// deadline, or has not started.
func Deadline(pod *v1.Pod, s *v1.PodStatus) (time.Time, bool) {
	if pod.Spec.ActiveDeadlineSeconds == nil || s == nil || s.StartTime == nil {
		return time.Time{}, false
	}
	return s.StartTime.Add(Seconds(*pod.Spec.ActiveDeadlineSeconds)), true
}

// sandboxReady reports whether the pod has the one sandbox that it needs. If not, it plans
// the next step towards it: stop everything, remove the init containers, which must run
// again, and run a new sandbox. A pod whose containers are all done gets no new sandbox.
func (p *planner) sandboxReady() bool {
	why := SandboxChanged(p.want, p.have)
	if why == "" {
		return true
	}
	uid := string(p.want.UID)
	if p.stopAll(uid, why) || !p.needsSandbox() {
		return false
	}
	next := Action{Verb: RunSandbox, UID: uid, Why: why}
	for _, sb := range slices.Backward(p.have.Sandboxes) {
		next.ID, next.Attempt = sb.ID, max(next.Attempt, sb.Attempt+1)
	}
	stale := false
	for _, c := range p.have.Containers {
		if c.UID == uid && p.isInit(c.Name) {
			stale = true
			p.add(Action{Verb: RemoveContainer, ID: c.ID, UID: uid, Name: c.Name, Logs: keptRuns, Why: why})
		}
	}
	if !stale {
		p.add(next)
	}
	return false
}

// needsSandbox reports whether a container would run in a new sandbox: it has not started yet,
// or may restart after its end.
func (p *planner) needsSandbox() bool {
	spec := &p.want.Spec
	for i := range spec.Containers {
		c := &spec.Containers[i]
		found, ok := p.newest(c.Name)
		if !ok || found.State != Exited || Restarts(spec, c, found.ExitCode) || p.have.interrupted(found) {
			return true
		}
	}
	return false
}

// SandboxChanged returns why the pod needs a new sandbox, by the kubelet's rules; "" if it does
// not need one.
func SandboxChanged(pod *v1.Pod, have Have) string {
	ready := 0
	for _, sb := range have.Sandboxes {
		if sb.Ready {
			ready++
		}
	}
	switch {
	case len(have.Sandboxes) == 0:
		return "pod has no sandbox"
	case ready > 1:
		return "pod has several ready sandboxes"
	}
	sb := have.Sandboxes[0]
	switch {
	case !sb.Ready:
		return "sandbox is not ready"
	case sb.HostNetwork != pod.Spec.HostNetwork:
		return "sandbox is on the wrong network"
	case !sb.HostNetwork && len(sb.IPs) == 0:
		return "sandbox has no address"
	}
	return ""
}

func (p *planner) isInit(name string) bool {
	return slices.ContainsFunc(p.want.Spec.InitContainers, func(c v1.Container) bool { return c.Name == name })
}

func (p *planner) newest(name string) (Container, bool) {
	return p.have.Newest(string(p.want.UID), name)
}

func (h *Have) Newest(uid, name string) (Container, bool) {
	for _, c := range h.Containers {
		if c.Name == name && c.UID == uid {
			return c, true
		}
	}
	return Container{}, false
}

// keptRuns is how many runs of a container are kept: the last one and the one before it.
const keptRuns = 2

// collect plans the removal of unused containers and sandboxes. It keeps the newest container of
// each name, and the one before it, whose log "crisp logs -p" shows; of dead sandboxes without
// containers it keeps the newest. While disk space is short, it keeps only the newest container
// of each name, and none of a finished pod. Logs go with their containers, except the last one
// of each name: a container that keeps crashing must not fill the disk.
func (p *planner) collect() {
	if p.want == nil || p.want.DeletionTimestamp != nil {
		return
	}
	most, why := keptRuns, "container is older than the last two"
	if p.have.Scarce {
		most, why = 1, "space is needed"
		if Terminal(p.have.Status) {
			most = 0
		}
	}
	kept := map[string]int{}
	used := map[string]bool{}
	for _, c := range p.have.Containers {
		if c.UID != string(p.want.UID) {
			continue
		}
		if kept[c.Name]++; kept[c.Name] > most && !alive(c) {
			p.add(Action{Verb: RemoveContainer, ID: c.ID, UID: c.UID, Name: c.Name, Logs: max(most, 1), Why: why})
			continue
		}
		used[c.SandboxID] = true
	}
	for i, sb := range p.have.Sandboxes {
		if i > 0 && sb.UID == string(p.want.UID) && !sb.Ready && !used[sb.ID] {
			p.add(Action{Verb: RemoveSandbox, ID: sb.ID, UID: sb.UID, Why: "sandbox has no containers any more"})
		}
	}
}
