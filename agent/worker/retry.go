package worker

import (
	"math/rand/v2"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
)

type failure struct {
	podsync.Failure
	count   int
	lasting bool // nothing on this node can mend it
}

// podFailures returns the failures for Compute and for the pod's status, which shows
// them as reasons.
func (w *worker) podFailures() map[string]podsync.Failure {
	out := make(map[string]podsync.Failure, len(w.failures))
	for subject, f := range w.failures {
		out[subject] = f.Failure
	}
	return out
}

// pullBackoffAt is when the status is to be looked at again because a failed pull turns
// into a back-off: ErrImagePull is shown for a moment, then ImagePullBackOff.
func (w *worker) pullBackoffAt() time.Time {
	var at time.Time
	for _, f := range w.failures {
		if f.lasting && time.Since(f.At) < podsync.PullErrorShown {
			at = earliest(at, f.At.Add(podsync.PullErrorShown))
		}
	}
	return at
}

const (
	firstPull, mostPull = 10 * time.Second, 300 * time.Second
	retry               = 10 * time.Second // of what the pod's manifest may be wrong about
	firstRetry          = time.Second      // of what is this node's own business
	mostRetry           = 30 * time.Second
	transient           = time.Second
)

// retryDelay is how long an action that has failed f.count times in a row is held
// back. A pull: 10 s to 300 s. What else goes wrong with a sandbox or with a
// container's start: 10 s and up to half as much again, so that pods do not try
// in step. Those are the kubelet's. What is not the pod's fault, but waits for
// the network or the runtime: a second.
func retryDelay(verb podsync.Verb, f *failure) time.Duration {
	switch f.Reason {
	case "NetworkNotReady", "RuntimeNotReady":
		return transient
	case "RunContainerError", "PostStartHookError":
		return transient // the container has ended, and its back-off counts
	case "ErrImagePull", "RegistryUnavailable", "SignatureValidationFailed":
		f.lasting = true
		return min(firstPull<<min(f.count-1, 8), mostPull)
	}
	if verb == podsync.StartContainer || verb == podsync.RunSandbox {
		return retry + rand.N(retry/2)
	}
	return min(firstRetry<<min(f.count-1, 8), mostRetry)
}
