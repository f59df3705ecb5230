package workload

import (
	"fmt"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/utils/ptr"
)

// A Turn is what a CronJob wants now.
type Turn struct {
	Start  time.Time      // the time of the schedule for which it wants a Job; zero for none
	Delete []*batchv1.Job // that a new one replaces, or that its history limits leave out
	Missed string         // why it wants no Job for a time that has come; "" if it does
}

// CronJob plans a CronJob: jobs are its own, and last is a time up to which its schedule is done
// with. Of several times that have been missed only the last one counts, as in Kubernetes.
func CronJob(c *batchv1.CronJob, jobs []*batchv1.Job, last, now time.Time) Turn {
	turn := Turn{Delete: manifest.BeyondHistory(c, jobs)}
	at, running := manifest.Due(c, last, now), manifest.ActiveJobs(jobs)
	switch policy, deadline := c.Spec.ConcurrencyPolicy, c.Spec.StartingDeadlineSeconds; {
	case at.IsZero() || ptr.Deref(c.Spec.Suspend, false):
	case deadline != nil && now.Sub(at) > podsync.Seconds(*deadline):
		turn.Missed = "Missed scheduled time to start a job: " + at.UTC().Format(time.RFC1123Z)
	case policy == batchv1.ForbidConcurrent && len(running) > 0, policy != batchv1.ReplaceConcurrent && len(running) >= manifest.MostActive:
		turn.Missed = fmt.Sprintf("Not starting job because %d are running: %s", len(running), running[0].Name)
	case policy == batchv1.ReplaceConcurrent:
		turn.Start, turn.Delete = at, append(turn.Delete, running...)
	default:
		turn.Start = at
	}
	return turn
}
