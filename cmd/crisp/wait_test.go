package main

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
)

// A wait for a Job continues while the Job is suspended, which is no failure.
func TestSettledJob(t *testing.T) {
	for kind, want := range map[batchv1.JobConditionType]struct {
		ok, failed bool
		word       string
	}{
		"": {}, batchv1.JobComplete: {ok: true}, batchv1.JobFailed: {failed: true}, batchv1.JobSuspended: {word: "Suspended"},
	} {
		j := &batchv1.Job{}
		if kind != "" {
			j.Status.Conditions = []batchv1.JobCondition{{Type: kind, Status: v1.ConditionTrue}}
		}
		ok, word, err := settledJob(j)
		if ok != want.ok || word != want.word || (err != nil) != want.failed {
			t.Errorf("%q: %v, %q, %v", kind, ok, word, err)
		}
	}
}
