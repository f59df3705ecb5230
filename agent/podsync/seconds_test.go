package podsync_test

import (
	"math"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"k8s.io/utils/ptr"
)

// Kubernetes accepts any number of seconds as a grace period. One beyond the range of a
// time.Duration is very long, not negative, and leaves room for additions.
func TestHugeGrace(t *testing.T) {
	if got := podsync.Seconds(30); got != 30*time.Second {
		t.Errorf("30 s are %v", got)
	}
	for _, n := range []int64{1e10, 1e12, math.MaxInt64} {
		p := pod(always)
		p.Spec.TerminationGracePeriodSeconds = ptr.To(n)
		h := have(t, "S0@u- a0/S0=run b0/S0=1")
		actions := podsync.Compute(p, h, now).Actions
		if len(actions) != 1 || actions[0].Grace < 100*365*24*time.Hour || actions[0].Grace+actions[0].Grace < 0 {
			t.Errorf("%d s: stops %+v", n, actions)
		}
		if got := podsync.Seconds(-n); got > -100*365*24*time.Hour || got+got > 0 {
			t.Errorf("%d s are %v", -n, got)
		}
	}
}
