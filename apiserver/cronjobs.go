package apiserver

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/apiserver/store"
	"github.com/crisp-cri/crisp/apiserver/workload"
	"github.com/crisp-cri/crisp/internal/fault"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
)

// cronJobs makes the Jobs of CronJobs when their times come. What an earlier agent has done is known
// from the Jobs, which are objects of the store.
type cronJobs struct {
	*cluster
	done map[string]time.Time // up to when a CronJob is done with; by manifest.Key
	said map[string]string    // the last event of a CronJob, to record it once
}

// run does what is due now.
func (s *cronJobs) run(now time.Time) {
	if !s.agent.Wanted.Local() || !s.agent.Runtime.Connected() {
		return
	}
	jobs := manifest.JobsByCronJob(s.agent.Wanted.List("Job"))
	done, said := map[string]time.Time{}, map[string]string{}
	for _, o := range s.agent.Wanted.List("CronJob") {
		key := manifest.Key(o)
		switch done[key] = s.done[key]; {
		case done[key].IsZero():
			done[key] = manifest.Since(jobs[key], now)
		case done[key].After(now): // the clock was set back
			done[key] = now
		}
		c := o.(*batchv1.CronJob)
		turn := workload.CronJob(c, jobs[key], done[key], now)
		said[key], done[key] = s.turn(c, turn, s.said[key], done[key])
		delete(jobs, key)
	}
	s.done, s.said = done, said
	for _, orphans := range jobs {
		for _, j := range orphans {
			if s.agent.Wanted.Ready() { // else a source may still bring its CronJob
				s.remove(j)
			}
		}
	}
}

// turn does what a CronJob wants. It returns its last event, and up to when it is done with.
func (s *cronJobs) turn(c *batchv1.CronJob, turn workload.Turn, last string, done time.Time) (string, time.Time) {
	event := func(kind, reason, message string) string {
		if message != last {
			s.agent.Events.Event(v1.ObjectReference{APIVersion: "batch/v1", Kind: "CronJob", Namespace: c.Namespace, Name: c.Name, UID: c.UID}, kind, reason, message)
		}
		return message
	}
	for _, j := range turn.Delete {
		s.remove(j)
	}
	switch {
	case turn.Missed != "":
		return event(v1.EventTypeWarning, "MissSchedule", turn.Missed), done
	case turn.Start.IsZero():
		return last, done
	}
	j := manifest.JobOf(c, turn.Start)
	text, err := json.Marshal(j)
	if err == nil {
		_, _, _, err = s.objects.Put(text, store.PutOptions{Create: true})
	}
	switch {
	case errors.Is(err, fault.Exists): // an agent was killed before it knew that it had made it
		return last, turn.Start
	case err != nil: // the disk is full: again in a second
		return event(v1.EventTypeWarning, "FailedCreate", err.Error()), done
	}
	return event(v1.EventTypeNormal, "SuccessfulCreate", "Created job "+j.Name), turn.Start
}
