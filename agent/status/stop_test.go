package status_test

import (
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
)

// A pod that is stopped on request has not failed, whatever its exit codes and restart policy, and
// neither has it while it starts again.
func TestStopped(t *testing.T) {
	p := pod(v1.RestartPolicyNever, false)
	stop := &podsync.Stop{Since: now.Add(-time.Minute)}
	end := func(name string) podsync.Container {
		c := exited(name, 137)
		c.StartedAt, c.FinishedAt = now.Add(-time.Hour), now.Add(-30*time.Second)
		return c
	}
	for _, step := range []struct {
		name       string
		started    bool
		containers []podsync.Container
		phase      v1.PodPhase
		word       string
	}{
		{"has not begun", false, nil, v1.PodPending, "Stopped"},
		{"is being stopped", false, []podsync.Container{running("a"), end("b")}, v1.PodRunning, "ExitCode:137"},
		{"is stopped", false, []podsync.Container{end("a"), end("b")}, v1.PodRunning, "Stopped"},
		{"is about to start", true, []podsync.Container{end("a"), end("b")}, v1.PodRunning, "ExitCode:137"},
		{"runs", true, []podsync.Container{running("a"), running("b")}, v1.PodRunning, "Running"},
	} {
		have := in("x", step.containers...)
		have.Stop = stop
		if step.started {
			have.Stop = &podsync.Stop{Since: stop.Since, Started: now.Add(-time.Second)}
		}
		s := status.Of(p, have, nil, status.Node{}, now)
		if got := status.Word(&v1.Pod{Spec: p.Spec, Status: s}); s.Phase != step.phase || got != step.word {
			t.Errorf("%s: %s, %s; want %s, %s", step.name, s.Phase, got, step.phase, step.word)
		}
	}
}
