package podsync_test

import (
	"testing"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
)

func all(p *v1.Pod) {
	rule("In", 42)(p)
	p.Spec.Containers[0].RestartPolicyRules[0].Action = v1.ContainerRestartRuleActionRestartAllContainers
}

// A pod is restarted in its sandbox: running containers are killed, then all containers are
// removed, the one that caused it last. Whatever step an earlier agent reached, the next step
// follows.
func TestRestartAllContainers(t *testing.T) {
	const never, always = v1.RestartPolicyNever, v1.RestartPolicyAlways
	for _, test := range []struct {
		name string
		want *v1.Pod
		have string
		edit func(*podsync.Have)
		plan string
	}{
		{"of another code", served(never, all), "S0@u+ b0/S0=run a0/S0=1 t0/S0=run i0/S0=0 s0/S0=run", none, ""},
		{"what runs is killed", served(never, all), "S0@u+ b0/S0=run a0/S0=42 t0/S0=run i0/S0=0 s0/S0=run", none, "stop:b0/S0@0 stop:t0/S0@0 stop:s0/S0@0"},
		{"what is dead goes", served(never, all), "S0@u+ b0/S0=137 a0/S0=42 t0/S0=137 i0/S0=0 s0/S0=137", none, "rm:b0/S0 rm:t0/S0 rm:i0/S0 rm:s0/S0"},
		{"earlier runs too", with(always, all), "S0@u+ a1/S0=42 a0/S0=1 b1/S0=137 b0/S0=1", none, "rm:a0/S0 rm:b1/S0 rm:b0/S0"},
		{"an earlier agent has removed some", served(never, all), "S0@u+ a0/S0=42 s0/S0=137", none, "rm:s0/S0"},
		{"the cause goes last", served(never, all), "S0@u+ a0/S0=42", none, "rm:a0/S0"},
		{"then all begins again", served(never, all), "S0@u+", func(h *podsync.Have) { h.Logs = map[string]uint32{"s": 1, "i": 1, "a": 1} }, "start:s1/S0^-0"},
		{"not of a pod that has failed", with(never, all), "S0@u+ a0/S0=42 b0/S0=run", phase(v1.PodFailed), "stop:b0/S0"},
		{"not of an older run", with(always, all), "S0@u+ a1/S0=run a0/S0=42 b0/S0=run", none, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := have(t, test.have)
			test.edit(&h)
			if got := long(podsync.Compute(test.want, h, now)); got != test.plan {
				t.Errorf("got %q, want %q", got, test.plan)
			}
		})
	}
}
