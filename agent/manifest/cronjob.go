package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // for hosts that have none

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// The annotations of a CronJob's Job: crisp's has the name of the CronJob, Kubernetes' the time of
// the schedule for which it was made.
const (
	annotationCronJob = "crisp/cronjob"
	annotationTime    = batchv1.CronJobScheduledTimestampAnnotation
)

// MostActive bounds the Jobs of a CronJob that have not ended, if its concurrencyPolicy does not.
const MostActive = 100

// maxCronJob is the maximum length of a CronJob's name: those of its Jobs end in a time.
const maxCronJob = 52

func completeCronJob(v *validator, c *batchv1.CronJob, o Options) {
	s := &c.Spec
	setDefault(&s.ConcurrencyPolicy, batchv1.AllowConcurrent)
	setPointer(&s.Suspend, false)
	setPointer(&s.SuccessfulJobsHistoryLimit, 3)
	setPointer(&s.FailedJobsHistoryLimit, 1)
	if len(c.Name) > maxCronJob {
		v.report("metadata.name", "has more than %d characters", maxCronJob)
	}
	if _, err := schedule(c); err != nil {
		v.report("spec.schedule", "%v", err)
	}
	j := &batchv1.Job{ObjectMeta: *s.JobTemplate.ObjectMeta.DeepCopy(), Spec: s.JobTemplate.Spec}
	j.Name, j.Namespace = c.Name+"-0", c.Namespace
	o.Source = SourceAPI // as that of its Jobs
	v.under = "spec.jobTemplate."
	v.metadata(j, false)
	completeJob(v, j, o)
	v.under = ""
	s.JobTemplate.Spec = j.Spec
	s.JobTemplate.Spec.Selector = nil // each Job has its own
}

// schedule returns the schedule of a CronJob, as Kubernetes reads it.
func schedule(c *batchv1.CronJob) (cron.Schedule, error) {
	text := strings.TrimSpace(c.Spec.Schedule)
	switch {
	case text == "":
		return nil, errors.New("is missing")
	case strings.Contains(text, "TZ="):
		return nil, fmt.Errorf("%q: the time zone belongs into spec.timeZone", text)
	}
	if zone := c.Spec.TimeZone; zone != nil {
		if _, err := time.LoadLocation(*zone); err != nil || *zone == "" || *zone == "Local" {
			return nil, fmt.Errorf("spec.timeZone %q is not a time zone", *zone)
		}
		text = "TZ=" + *zone + " " + text
	}
	s, err := cron.ParseStandard(text)
	if err != nil {
		return nil, fmt.Errorf("%q: %v", c.Spec.Schedule, err)
	}
	return s, nil
}

// Since returns up to when the schedule of a CronJob that was not seen before is done with: the time of
// its latest Job, so that what came while no agent ran is not lost, or now.
func Since(jobs []*batchv1.Job, now time.Time) (last time.Time) {
	for _, j := range jobs {
		if _, at := CronJobOf(j); at.After(last) && !at.After(now) {
			last = at
		}
	}
	return cmp.Or(last, now)
}

// Due returns the last time of a CronJob's schedule after the time after, and not after now; zero
// if there is none.
func Due(c *batchv1.CronJob, after, now time.Time) (last time.Time) {
	const most = 100 // times to go through one by one: a machine may have been off for years
	s, err := schedule(c)
	if err != nil {
		return time.Time{} // an earlier release has accepted it
	}
	for n := 0; ; n++ {
		at := s.Next(after)
		if at.IsZero() || at.After(now) {
			return last
		}
		last, after = at, at
		if n != most {
			continue
		}
		for _, back := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour, 32 * 24 * time.Hour, 366 * 24 * time.Hour} {
			if at := s.Next(now.Add(-back)); at.After(after) && !at.After(now) {
				last, after = at, at
				break
			}
		}
	}
}

// JobOf returns the Job of a CronJob for a time of its schedule.
func JobOf(c *batchv1.CronJob, at time.Time) *batchv1.Job {
	t := c.Spec.JobTemplate.DeepCopy()
	number := at.Unix()
	if number%60 == 0 { // as Kubernetes names it
		number /= 60
	}
	j := &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", c.Name, number), Namespace: c.Namespace, Labels: t.Labels, Annotations: t.Annotations},
		Spec:       t.Spec,
	}
	j.Spec.Template.Spec.NodeName = "" // the node may be renamed
	delete(j.Spec.Template.Annotations, AnnotationHash)
	metav1.SetMetaDataAnnotation(&j.ObjectMeta, annotationCronJob, c.Name)
	metav1.SetMetaDataAnnotation(&j.ObjectMeta, annotationTime, at.Format(time.RFC3339))
	return j
}

// CronJobOf returns the key of the CronJob of a Job, "" if it has none, and the time of the schedule
// for which it was made. No file has such a Job.
func CronJobOf(j *batchv1.Job) (key string, at time.Time) {
	name := j.Annotations[annotationCronJob]
	if name == "" || j.Annotations[AnnotationSource] != SourceAPI {
		return "", time.Time{}
	}
	at, err := time.Parse(time.RFC3339, j.Annotations[annotationTime])
	if err != nil { // the annotation was changed by hand
		at = time.Time{}
	}
	return "cronjob " + j.Namespace + "/" + name, at
}

// JobsByCronJob returns the Jobs of all CronJobs, by the keys of these.
func JobsByCronJob(all []Object) map[string][]*batchv1.Job {
	jobs := map[string][]*batchv1.Job{}
	for _, o := range all {
		if j, ok := o.(*batchv1.Job); ok {
			if key, _ := CronJobOf(j); key != "" {
				jobs[key] = append(jobs[key], j)
			}
		}
	}
	return jobs
}

// EndOf returns how a Job has ended: batchv1.JobComplete or batchv1.JobFailed; "" if it has not.
func EndOf(j *batchv1.Job) batchv1.JobConditionType {
	for _, c := range j.Status.Conditions {
		if c.Status == v1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
			return c.Type
		}
	}
	return ""
}

// ActiveJobs returns the Jobs that have not ended.
func ActiveJobs(jobs []*batchv1.Job) []*batchv1.Job {
	return slices.DeleteFunc(slices.Clone(jobs), func(j *batchv1.Job) bool { return EndOf(j) != "" })
}

// WithStatus returns a CronJob with the status that its Jobs tell.
func WithStatus(c *batchv1.CronJob, jobs []*batchv1.Job) *batchv1.CronJob {
	c = c.DeepCopy()
	s := &c.Status
	for _, j := range jobs {
		if _, at := CronJobOf(j); s.LastScheduleTime == nil || at.After(s.LastScheduleTime.Time) {
			s.LastScheduleTime = &metav1.Time{Time: at}
		}
		if at := j.Status.CompletionTime; at != nil && (s.LastSuccessfulTime == nil || at.After(s.LastSuccessfulTime.Time)) {
			s.LastSuccessfulTime = at
		}
	}
	for _, j := range ActiveJobs(jobs) {
		s.Active = append(s.Active, v1.ObjectReference{APIVersion: "batch/v1", Kind: "Job", Namespace: j.Namespace, Name: j.Name, UID: j.UID})
	}
	return c
}

// BeyondHistory returns the Jobs of a CronJob that have ended and that its history limits leave out.
func BeyondHistory(c *batchv1.CronJob, jobs []*batchv1.Job) (gone []*batchv1.Job) {
	for how, limit := range map[batchv1.JobConditionType]*int32{batchv1.JobComplete: c.Spec.SuccessfulJobsHistoryLimit, batchv1.JobFailed: c.Spec.FailedJobsHistoryLimit} {
		ended := slices.DeleteFunc(slices.Clone(jobs), func(j *batchv1.Job) bool { return EndOf(j) != how })
		slices.SortFunc(ended, func(a, b *batchv1.Job) int {
			return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
		})
		gone = append(gone, ended[:max(0, len(ended)-int(max(ptr.Deref(limit, math.MaxInt32), 0)))]...)
	}
	return gone
}
