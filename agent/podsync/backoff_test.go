package podsync_test

import (
	"slices"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
)

// A container that repeatedly ends is restarted after 10 s, 20 s and so on, at most 300 s, even if
// agents are killed meanwhile. After ten minutes of running the back-off starts again.
func TestBackoffOfManyRuns(t *testing.T) {
	for _, killed := range []bool{false, true} {
		w := newWorld(1)
		w.calm, w.pod = true, pod(always)
		w.pod.Spec.Containers = []v1.Container{{Name: "a"}}
		w.uses["a"] = &program{codes: []int32{1}}
		var waits []time.Duration
		ended := time.Duration(0)
		for run := 0; len(waits) < 12; run++ {
			if acted, plan := w.round(); !acted && !plan.Again.IsZero() {
				w.sleep(plan.Again.Sub(w.now()))
			}
			if killed {
				w.boot()
			}
			if len(w.containers) == 0 || w.containers[0].State != podsync.Running {
				continue
			}
			if ended > 0 {
				waits = append(waits, (w.passed - ended).Round(time.Second))
			}
			lasts := time.Second
			if len(waits) == 9 {
				lasts = 10 * time.Minute
			}
			w.sleep(lasts)
			w.ends(&w.containers[0], 1, "")
			ended = w.passed
		}
		var want []time.Duration
		for _, s := range []int{0, 10, 20, 40, 80, 160, 300, 300, 300, 0, 10, 20} {
			want = append(want, time.Duration(s)*time.Second)
		}
		if !slices.Equal(waits, want) {
			t.Errorf("killed: %t: waits %v, want %v", killed, waits, want)
		}
	}
}
