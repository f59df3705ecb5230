package podsync

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// AnnotationEnded ends the wanted pod as Failed; its value is the reason. The pod's workload has
// failed, and keeps the pod as a record.
const AnnotationEnded = "io.crisp.workload.ended"

// end plans the next step of ending the pod uid and reports whether anything of it is left. The
// steps are: stop the containers, stop the sandboxes, remove the containers, the files, the
// sandboxes. The sandbox is last because a restarted agent finds the rest through it.
func (p *planner) end(uid, why string) bool {
	if p.stopAll(uid, why) {
		return true
	}
	left := false
	for _, c := range p.have.Containers {
		if c.UID == uid {
			left = true
			p.add(Action{Verb: RemoveContainer, ID: c.ID, UID: uid, Name: c.Name, Why: why})
		}
	}
	if left {
		return true
	}
	if slices.Contains(p.have.Files, uid) {
		p.add(Action{Verb: ForgetFiles, UID: uid, Why: why})
		return true
	}
	for _, sb := range p.have.Sandboxes {
		if sb.UID == uid {
			left = true
			p.add(Action{Verb: RemoveSandbox, ID: sb.ID, UID: uid, Why: why})
		}
	}
	return left
}

// stopAll plans to stop every live container of the pod uid or, if there is none, its ready
// sandboxes, and reports whether there is one to stop. Sidecars stop after the containers that they
// serve, in reverse order of their start.
func (p *planner) stopAll(uid, why string) bool {
	pod := p.pod(uid)
	live := false
	for _, c := range p.have.Containers {
		if c.UID != uid || !alive(c) {
			continue
		}
		live = true
		a := p.stop(c, why)
		if pod != nil {
			a.After = p.before(pod, c)
		}
		p.add(a)
	}
	if live {
		return true
	}
	for _, sb := range p.have.Sandboxes {
		if sb.UID == uid && sb.Ready {
			live = true
			p.add(Action{Verb: StopSandbox, ID: sb.ID, UID: uid, Why: why})
		}
	}
	return live
}

// before returns the IDs of the live containers that must end before the sidecar c: the regular
// containers and the sidecars that started later. For another container it returns none.
func (p *planner) before(pod *v1.Pod, c Container) []string {
	index := func(name string) int {
		return slices.IndexFunc(pod.Spec.InitContainers, func(i v1.Container) bool { return i.Name == name })
	}
	i := index(c.Name)
	if i < 0 || !IsSidecar(&pod.Spec.InitContainers[i]) {
		return nil
	}
	var ids []string
	for _, other := range p.have.Containers {
		if other.UID != c.UID || !alive(other) {
			continue
		}
		j := index(other.Name)
		regular := slices.ContainsFunc(pod.Spec.Containers, func(r v1.Container) bool { return r.Name == other.Name })
		if regular || j > i && IsSidecar(&pod.Spec.InitContainers[j]) {
			ids = append(ids, other.ID)
		}
	}
	return ids
}

func (p *planner) pod(uid string) *v1.Pod {
	if p.want != nil && string(p.want.UID) == uid {
		return p.want
	}
	return p.have.Accepted[uid]
}

// alive reports whether a container must be stopped before its successor starts: it runs, or its
// state is unknown.
func alive(c Container) bool { return c.State == Running || c.State == Unknown }

func (p *planner) stop(c Container, why string) Action {
	return Action{Verb: StopContainer, ID: c.ID, UID: c.UID, Name: c.Name, Grace: p.grace(c, nil), Why: why}
}

// grace returns how long c has to end: according to the verdict or the stop, or else to the
// deletion, the failed probe (nil if none failed), or the pod. If the pod is unknown, it is the
// grace period that c was created with.
func (p *planner) grace(c Container, probe *v1.Probe) time.Duration {
	pod := p.pod(c.UID)
	wanted := p.want != nil && pod == p.want
	switch {
	case wanted && p.want.DeletionTimestamp == nil && p.have.Verdict != nil && p.have.Verdict.Grace != nil:
		return Seconds(*p.have.Verdict.Grace)
	case wanted && p.want.DeletionTimestamp == nil && p.have.Stop.On() && p.have.Stop.Grace != nil:
		return Seconds(*p.have.Stop.Grace)
	case pod == nil:
		return c.Grace
	case pod.DeletionGracePeriodSeconds != nil:
		return Seconds(*pod.DeletionGracePeriodSeconds)
	case probe != nil && probe.TerminationGracePeriodSeconds != nil:
		return Seconds(*probe.TerminationGracePeriodSeconds)
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		return Seconds(*pod.Spec.TerminationGracePeriodSeconds)
	}
	return c.Grace
}

const StoppedReason = "Stopped"

// A Stop says that a pod was stopped on request, and when it was started again. worker.Stops
// keep it as JSON.
type Stop struct {
	Since time.Time `json:"since"`
	// Grace is how many seconds its containers have to end; nil is the pod's own grace
	// period.
	Grace *int64 `json:"gracePeriodSeconds,omitempty"`
	// Started is when the pod was started again; zero while it stays stopped.
	Started time.Time `json:"started,omitzero"`
}

func (s *Stop) On() bool { return s != nil && s.Started.IsZero() }

// Halted reports whether a pod with this status, which may be nil, has ended or was stopped on
// request.
func Halted(s *v1.PodStatus) bool {
	return Terminal(s) || s != nil && s.Reason == StoppedReason
}

// Interrupted reports whether the stop ended a container that ran from began to ended. Such a
// container runs again when the pod is started, whatever its restart policy. Times in a status
// are in whole seconds, so Since is truncated likewise.
func (s *Stop) Interrupted(began, ended time.Time) bool {
	return s != nil && !ended.Before(s.Since.Truncate(time.Second)) && (s.On() || !began.After(s.Started))
}

// Interrupts reports whether the newest container of any name of the pod was interrupted by
// the stop, so that the stop still matters.
func (h *Have) Interrupts(uid string) bool {
	seen := map[string]bool{}
	for _, c := range h.Containers {
		if c.UID != uid || seen[c.Name] {
			continue
		}
		seen[c.Name] = true
		if h.interrupted(c) {
			return true
		}
	}
	return false
}

func (h *Have) interrupted(c Container) bool {
	return c.State == Exited && h.Stop.Interrupted(c.StartedAt, c.FinishedAt)
}

func (h *Have) Alive(uid string) bool {
	return slices.ContainsFunc(h.Containers, func(c Container) bool { return c.UID == uid && alive(c) })
}
