package workload

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// at returns a time of the 9th of March 2026, UTC.
func at(t *testing.T, text string) time.Time {
	t.Helper()
	when, err := time.Parse("2006-01-02 15:04:05", "2026-03-09 "+text)
	if err != nil {
		t.Fatal(err)
	}
	return when
}

// cronOf returns a CronJob whose spec has these lines.
func cronOf(t *testing.T, spec string) *batchv1.CronJob {
	t.Helper()
	text := "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: c}\nspec:\n  " + spec +
		"\n  jobTemplate: {metadata: {labels: {a: b}}, spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: i}]}}}}\n"
	objects, _, err := manifest.Read("f", []byte(text), manifest.Options{NodeName: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	return objects[0].(*batchv1.CronJob)
}

func jobAt(c *batchv1.CronJob, when time.Time, how batchv1.JobConditionType) *batchv1.Job {
	j := manifest.JobOf(c, when)
	j.CreationTimestamp = metav1.Time{Time: when}
	j.Annotations[manifest.AnnotationSource] = manifest.SourceAPI
	if how != "" {
		j.Status.Conditions = []batchv1.JobCondition{{Type: how, Status: v1.ConditionTrue}}
	}
	return j
}

// A CronJob starts a Job at each time of its schedule. Of those that were missed only the last one
// counts, and none that is too late.
func TestCronJobTimes(t *testing.T) {
	for _, test := range []struct{ what, spec, last, now, start, missed string }{
		{"not yet", `schedule: "*/5 * * * *"`, "10:00:00", "10:04:59", "", ""},
		{"now", `schedule: "*/5 * * * *"`, "10:00:00", "10:05:00", "10:05:00", ""},
		{"later than now", `schedule: "*/5 * * * *"`, "10:00:00", "10:09:59", "10:05:00", ""},
		{"several missed", `schedule: "*/5 * * * *"`, "10:00:00", "10:59:59", "10:55:00", ""},
		{"more than a hundred missed", `schedule: "* * * * *"`, "00:00:00", "23:58:30", "23:58:00", ""},
		{"more than a hundred missed, of a while ago", `schedule: "* 1-3 * * *"`, "00:00:00", "23:58:30", "03:59:00", ""},
		{"too late", "startingDeadlineSeconds: 20\n  schedule: \"*/5 * * * *\"", "10:00:00", "10:05:21", "", "Missed scheduled time to start a job: Mon, 09 Mar 2026 10:05:00 +0000"},
		{"just in time", "startingDeadlineSeconds: 20\n  schedule: \"*/5 * * * *\"", "10:00:00", "10:05:20", "10:05:00", ""},
		{"suspended", "suspend: true\n  schedule: \"*/5 * * * *\"", "10:00:00", "10:05:20", "", ""},
		{"in a zone", "timeZone: Asia/Kolkata\n  schedule: \"0 16 * * *\"", "10:00:00", "10:30:00", "10:30:00", ""},
		{"every", `schedule: "@every 90s"`, "10:00:00", "10:01:31", "10:01:30", ""},
		{"never", `schedule: "0 0 30 2 *"`, "10:00:00", "10:01:31", "", ""},
	} {
		c := cronOf(t, test.spec)
		turn := CronJob(c, nil, at(t, test.last), at(t, test.now))
		want := time.Time{}
		if test.start != "" {
			want = at(t, test.start)
		}
		if !turn.Start.Equal(want) || turn.Missed != test.missed {
			t.Errorf("%s: %+v, want %s", test.what, turn, test.start)
		}
	}
}

// A time that came while no agent ran is one that was missed, if a Job tells that the CronJob was there.
func TestCronJobAfterAPause(t *testing.T) {
	c, now := cronOf(t, `schedule: "*/5 * * * *"`), at(t, "10:59:00")
	jobs := []*batchv1.Job{jobAt(c, at(t, "10:05:00"), batchv1.JobComplete), jobAt(c, at(t, "10:00:00"), batchv1.JobFailed), jobAt(c, at(t, "11:30:00"), batchv1.JobComplete)}
	if turn := CronJob(c, jobs, manifest.Since(jobs, now), now); !turn.Start.Equal(at(t, "10:55:00")) {
		t.Errorf("with Jobs: %+v", turn)
	}
	if turn := CronJob(c, nil, manifest.Since(nil, now), now); !turn.Start.IsZero() {
		t.Errorf("without: %+v", turn)
	}
}

// What runs decides whether another Job may.
func TestCronJobConcurrency(t *testing.T) {
	last, now := at(t, "10:00:00"), at(t, "10:05:00")
	for _, test := range []struct {
		policy, missed string
		starts         bool
		gone           int
	}{
		{"Allow", "", true, 0},
		{"Forbid", "Not starting job because 1 are running: c-29550840", false, 0},
		{"Replace", "", true, 1},
	} {
		c := cronOf(t, "schedule: \"*/5 * * * *\"\n  concurrencyPolicy: "+test.policy)
		running := jobAt(c, last, "")
		turn := CronJob(c, []*batchv1.Job{running, jobAt(c, last.Add(-time.Hour), batchv1.JobComplete)}, last, now)
		if turn.Start.IsZero() == test.starts || len(turn.Delete) != test.gone || turn.Missed != test.missed {
			t.Errorf("%s: %+v", test.policy, turn)
		}
		// When it is over, the time that was missed counts.
		if turn = CronJob(c, []*batchv1.Job{jobAt(c, last, batchv1.JobFailed)}, last, now); turn.Start.IsZero() {
			t.Errorf("%s: nothing starts after the end: %+v", test.policy, turn)
		}
		// An agent was killed after it had made the Job of now; the clock was set back.
		jobs := []*batchv1.Job{jobAt(c, now, batchv1.JobComplete), jobAt(c, now.Add(time.Hour), batchv1.JobComplete)}
		if turn = CronJob(c, jobs, manifest.Since(jobs, now), now); !turn.Start.IsZero() {
			t.Errorf("%s: a Job twice: %+v", test.policy, turn)
		}
		if turn = CronJob(c, jobs, manifest.Since(jobs, now), now.Add(5*time.Minute)); turn.Start.IsZero() {
			t.Errorf("%s: none before the clock is where it was: %+v", test.policy, turn)
		}
	}
	c := cronOf(t, `schedule: "*/5 * * * *"`)
	var many []*batchv1.Job
	for i := range manifest.MostActive {
		many = append(many, jobAt(c, last.Add(-time.Duration(i)*time.Hour), ""))
	}
	if turn := CronJob(c, many, last, now); !turn.Start.IsZero() || !strings.Contains(turn.Missed, "100 are running") {
		t.Errorf("of many: %+v", turn)
	}
}

func TestCronJobHistory(t *testing.T) {
	c := cronOf(t, "schedule: \"@yearly\"\n  successfulJobsHistoryLimit: 2\n  failedJobsHistoryLimit: 0")
	noon := at(t, "12:00:00")
	var jobs []*batchv1.Job
	for i, how := range []batchv1.JobConditionType{batchv1.JobComplete, batchv1.JobFailed, batchv1.JobComplete, batchv1.JobComplete, ""} {
		jobs = append(jobs, jobAt(c, noon.Add(time.Duration(i)*time.Minute), how))
	}
	var gone []string
	for _, j := range CronJob(c, jobs, noon, noon).Delete {
		gone = append(gone, j.Name)
	}
	slices.Sort(gone)
	if want := []string{"c-29550960", "c-29550961"}; !slices.Equal(gone, want) {
		t.Errorf("%q are gone, want %q", gone, want)
	}
	c.Spec.SuccessfulJobsHistoryLimit = ptr.To(int32(-1)) // that an earlier release has accepted
	if got := CronJob(c, jobs, noon, noon).Delete; len(got) != 4 {
		t.Errorf("%d are gone", len(got))
	}
	if s := manifest.WithStatus(c, jobs).Status; len(s.Active) != 1 || s.Active[0].Name != "c-29550964" || !s.LastScheduleTime.Time.Equal(noon.Add(4*time.Minute)) {
		t.Errorf("%+v", s)
	}
}

// The Job of a CronJob is one like any other.
func TestJobOfCronJob(t *testing.T) {
	c := cronOf(t, `schedule: "@daily"`)
	j := manifest.JobOf(c, at(t, "10:00:30"))
	if j.Name != "c-1773050430" || j.Namespace != "default" || j.Labels["a"] != "b" || j.Spec.Selector != nil || j.Spec.Template.Spec.NodeName != "" ||
		j.Spec.Template.Annotations[manifest.AnnotationHash] != "" || c.Spec.JobTemplate.Spec.Template.Spec.NodeName != "n1" {
		t.Errorf("%+v", j)
	}
	if got, _ := manifest.CronJobOf(j); got != "" {
		t.Errorf("a Job of a file is one of %s", got)
	}
	if got, _ := manifest.CronJobOf(jobAt(c, at(t, "10:00:00"), "")); got != "cronjob default/c" {
		t.Errorf("it is one of %q", got)
	}
}
