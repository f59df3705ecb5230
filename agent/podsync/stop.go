package podsync

import (
	"slices"
	"time"
)

// StoppedReason is the reason in the status of a pod that was stopped on request.
const StoppedReason = "Stopped"

// A Stop says that a pod was stopped on request, and when it was started again. agent/stopped
// keeps it as JSON.
type Stop struct {
	Since time.Time `json:"since"`
	// Grace is how many seconds its containers have to end; nil is the pod's own grace
	// period.
	Grace *int64 `json:"gracePeriodSeconds,omitempty"`
	// Started is when the pod was started again; zero while it stays stopped.
	Started time.Time `json:"started,omitzero"`
}

// On reports whether the pod must stay stopped.
func (s *Stop) On() bool { return s != nil && s.Started.IsZero() }

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

// Alive reports whether a container of the pod may run.
func (h *Have) Alive(uid string) bool {
	return slices.ContainsFunc(h.Containers, func(c Container) bool { return c.UID == uid && alive(c) })
}

// halt plans to stop a pod that must stay stopped. Its containers stay for their logs and exit
// codes, and its volumes, cgroup and user IDs for its next start.
func (p *planner) halt() {
	const why = "pod is stopped on request"
	if !p.stopAll(string(p.want.UID), why) {
		p.stopSandboxes(func(Sandbox) bool { return true }, why)
	}
}
