package worker

import (
	"maps"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
)

type failure struct {
	podsync.Failure
	count int
}

// held returns the failures for Compute, which also shows them as reasons.
func (w *worker) held() map[string]podsync.Failure {
	out := make(map[string]podsync.Failure, len(w.failures))
	for subject, f := range maps.All(w.failures) {
		out[subject] = f.Failure
	}
	return out
}

// retryDelay is how long an action that failed count times in a row is held
// back. Starting a container usually fails because of its image: 10 s to 300 s,
// as the kubelet pulls. All else is this node's own business and soon repaired:
// 1 s to 30 s.
func retryDelay(verb podsync.Verb, count int) time.Duration {
	first, most := time.Second, 30*time.Second
	if verb == podsync.StartContainer {
		first, most = 10*time.Second, 300*time.Second
	}
	return min(first<<min(count-1, 8), most)
}
