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
