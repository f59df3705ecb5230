package podsync_test

import (
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
)

// A requested restart whose stop has failed, because the runtime was down, is delayed like any
// other stop, and does not affect the rest of the plan.
func TestRestartHeldBack(t *testing.T) {
	soon := 5 * time.Second
	for failed, want := range map[string]string{"a0/S0": "stop:b0/S0 again:1", "b0/S0": "stop:a0/S0 again:1"} {
		h := have(t, "S0@u+ a0/S0=run b0/S0=run")
		h.Restart = map[string]*time.Duration{"a0/S0": nil, "b0/S0": nil}
		h.Restart[failed] = &soon
		h.Failures = map[string]podsync.Failure{podsync.Action{Verb: podsync.StopContainer, ID: failed}.Subject(): {Until: now.Add(time.Second)}}
		p := podsync.Compute(pod(always), h, now)
		if got := plan(p); got != want || p.Actions[0].Grace != 30*time.Second {
			t.Errorf("%s: got %q within %v, want %q within 30 s", failed, got, p.Actions[0].Grace, want)
		}
		delete(h.Restart, "a0/S0")
		delete(h.Restart, "b0/S0")
		h.Restart[failed] = &soon
		if got := plan(podsync.Compute(pod(always), h, now)); got != "again:1" {
			t.Errorf("%s alone: got %q, want it to wait", failed, got)
		}
		if p := podsync.Compute(pod(always), h, now.Add(time.Second)); plan(p) != "stop:"+failed || p.Actions[0].Grace != soon {
			t.Errorf("%s afterwards: got %q within %v, want it stopped within 5 s", failed, plan(p), p.Actions[0].Grace)
		}
	}
}
