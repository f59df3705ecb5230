package worker

import (
	"math/rand/v2"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
)

type failure struct {
	podsync.Failure
	count   int  // failures in a row
	lasting bool // no change on this node can help: Again does not retry it
}

// podFailures returns the failures, by subject, for Compute and for the pod's status, which
// shows their reasons.
func (w *worker) podFailures() map[string]podsync.Failure {
	out := make(map[string]podsync.Failure, len(w.failures))
	for subject, f := range w.failures {
		out[subject] = f.Failure
	}
	return out
}

// pullBackoffAt returns when the status must be computed again because ErrImagePull, which it
// shows for podsync.PullErrorShown, becomes ImagePullBackOff; zero is never. It was last computed
// at the time now or later.
func (w *worker) pullBackoffAt(now time.Time) time.Time {
	var at time.Time
	for _, f := range w.failures {
		if f.lasting && now.Sub(f.At) < podsync.PullErrorShown {
			at = podsync.Earliest(at, f.At.Add(podsync.PullErrorShown))
		}
	}
	return at
}

const (
	firstPull, mostPull = 10 * time.Second, 300 * time.Second
	retry               = 10 * time.Second // after failures that the manifest may cause
	firstRetry          = time.Second      // after other failures
	mostRetry           = 30 * time.Second
	transient           = time.Second // while the network or the runtime is not ready
)

// retryDelay returns how long an action that has failed f.count times in a row is held back:
//
//   - a pull: 10 s, 20 s and so on, at most 300 s, as in the kubelet;
//   - another failure to run a sandbox or to start a container: 10 s, as in the kubelet, and
//     up to half as much again, so that pods do not retry in step;
//   - anything while the network or the runtime is not ready: 1 s;
//   - a container whose start or postStart hook failed: 1 s, since it has ended and has its own
//     back-off;
//   - anything else: 1 s, 2 s and so on, at most 30 s.
//
// It marks a failed pull as lasting.
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
