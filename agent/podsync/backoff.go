package podsync

import (
	"math"
	"time"

	v1 "k8s.io/api/core/v1"
)

// DefaultMaxBackoff is the default of the longest back-off of a container that keeps exiting. It
// is the kubelet's.
const DefaultMaxBackoff = 300 * time.Second

const (
	firstBackoff = 10 * time.Second
	// stableRun is how long a container must have run for its back-off to start over.
	stableRun = 2 * DefaultMaxBackoff
	// resetBackoff is the Backoff of a container whose predecessors do not count, because
	// they did not fail on their own. Its successor may start at once.
	resetBackoff = -1
)

// nextBackoff returns how long after the end of c its successor may start: at once the first
// time, then 10 s, doubled each time up to c.MaxBackoff, as in the kubelet. It depends on c
// alone, so a restart of the agent neither shortens nor lengthens it.
func nextBackoff(c Container) time.Duration {
	longest := c.MaxBackoff
	if longest == 0 {
		longest = DefaultMaxBackoff
	}
	switch {
	case c.Attempt == 0, c.Backoff < 0, c.FinishedAt.Sub(c.StartedAt) >= stableRun && !c.StartedAt.IsZero():
		return 0
	case c.Backoff == 0:
		return min(firstBackoff, longest)
	}
	return min(2*c.Backoff, longest)
}

// RestartAt returns when the successor of found, which has exited, may start, and the back-off
// before that start. If the agent stopped found, its run time counts too: the back-off starts at
// the end of the container before it. After a change of the definition there is no back-off.
func (h *Have) RestartAt(c *v1.Container, found Container, now time.Time) (time.Time, time.Duration) {
	if changed(c, found) {
		return After(found.FinishedAt, 0, now), resetBackoff
	}
	wait := nextBackoff(found)
	if !h.Restarted[found.ID] {
		return After(found.FinishedAt, wait, now), wait
	}
	for _, other := range h.Containers {
		if other.Name == found.Name && other.UID == found.UID && other.ID != found.ID && other.State == Exited {
			return After(other.FinishedAt, wait, now), wait
		}
	}
	if found.Attempt == 0 {
		wait = resetBackoff
	}
	return After(found.FinishedAt, 0, now), wait
}

// mostSeconds is 146 years: half of the longest time.Duration, so that the sum of two fits.
const mostSeconds = math.MaxInt64 / 2 / int64(time.Second)

// Seconds returns n seconds, but no more than 146 years and no less than their negative:
// Kubernetes has no limit for many of the times that a pod may name.
func Seconds(n int64) time.Duration {
	return time.Duration(min(max(n, -mostSeconds), mostSeconds)) * time.Second
}

// After returns when wait has passed since t. If the clock was set back since, that cannot be
// known, and wait counts as over.
func After(t time.Time, wait time.Duration, now time.Time) time.Time {
	if t.After(now) {
		return now
	}
	return t.Add(wait)
}

// Earliest returns the earlier of two times; zero is never.
func Earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
