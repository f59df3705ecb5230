package podsync

import (
	"math"
	"time"
)

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

// Earliest returns the earlier of two times, of which zero is never.
func Earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
