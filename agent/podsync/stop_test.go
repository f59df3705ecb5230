package podsync_test

import (
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
)

// A pod that is stopped on request keeps its state. When it is started again, exactly the
// containers that the stop has ended run again, whatever the restart policy.
func TestStop(t *testing.T) {
	const never, always, failure = v1.RestartPolicyNever, v1.RestartPolicyAlways, v1.RestartPolicyOnFailure
	at := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
	stopped := &podsync.Stop{Since: at(-10)}
	started := &podsync.Stop{Since: at(-10), Started: at(-1)}
	for _, test := range []struct {
		name   string
		policy v1.RestartPolicy
		stop   *podsync.Stop
		have   string
		plan   string
	}{
		{"what runs is stopped", always, stopped, "S0@u+ a0/S0=run b0/S0=1", "stop:a0/S0"},
		{"then the sandbox is", always, stopped, "S0@u+ a0/S0=143~5 b0/S0=1", "stop:S0"},
		{"then nothing happens", always, stopped, "S0@u- a0/S0=143~5 b0/S0=1", ""},
		{"nor has it begun", always, stopped, "", ""},
		{"another of the name ends first", always, stopped, "S0@x+ a0/S0=run F@x", "stop:a0/S0"},
		{"started: a new sandbox", never, started, "S0@u- a0/S0=143~5 b0/S0=143~5", "run:S1/S0"},
		{"in which what was ended runs", never, started, "S1@u+ S0@u- a0/S0=143~5 b0/S0=0~60", "start:a1/S1"},
		{"and ended well, too", failure, started, "S1@u+ S0@u- a0/S0=0~5 b0/S0=0~60", "start:a1/S1"},
		{"but what ends by itself later does not", never, started, "S1@u+ S0@u- a1/S1=1~0 b1/S1=run", "rm:S0"},
		{"and what had ended before is no reason for a sandbox", never, started, "S0@u- a0/S0=1~60 b0/S0=0~60", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := have(t, test.have)
			h.Stop, h.HasResources = test.stop, true
			for i := range h.Containers {
				if c := &h.Containers[i]; c.Attempt > 0 && c.State == podsync.Exited {
					c.StartedAt, c.FinishedAt = now, now
				}
			}
			if got := plan(podsync.Compute(pod(test.policy), h, now)); got != test.plan {
				t.Errorf("got %q, want %q", got, test.plan)
			}
		})
	}
	grace := int64(3)
	h := have(t, "S0@u+ a0/S0=run")
	h.Stop = &podsync.Stop{Since: now, Grace: &grace}
	if a := podsync.Compute(pod(always), h, now).Actions; len(a) != 1 || a[0].Grace != 3*time.Second {
		t.Errorf("with three seconds: %+v", a)
	}
}
