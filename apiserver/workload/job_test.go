package workload_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/apiserver/workload"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const sum = `apiVersion: batch/v1
kind: Job
metadata: {name: sum}
spec:
  completions: 3
  parallelism: 2
  backoffLimit: 1
%s
  template: {spec: {restartPolicy: Never, containers: [{name: a, image: "i:1"}]}}
`

// condition returns the last condition of a Job.
func condition(p source.Plan) string {
	text := ""
	for _, c := range p.Status.(*batchv1.Job).Status.Conditions {
		text = string(c.Type) + " " + c.Reason
	}
	return text
}

// A Job runs until its completions are reached, with no more active pods than its parallelism.
func TestJob(t *testing.T) {
	w := &world{t: t, now: time.Unix(1e9, 0), object: read(t, fmt.Sprintf(sum, "  activeDeadlineSeconds: 3600\n  ttlSecondsAfterFinished: 60"))}
	w.expect("at first", "sum-0:1 sum-1:1")
	w.end("sum-0", v1.PodSucceeded)
	w.expect("one has succeeded", "sum-0:1 sum-1:1 sum-2:1")
	w.end("sum-1", v1.PodFailed)
	w.expect("one has failed: not at once", "sum-0:1 sum-1:1 sum-2:1")
	if want := w.now.Add(10 * time.Second); !w.plan.Again.Equal(want) {
		t.Errorf("tries again at %v, want %v", w.plan.Again, want)
	}
	w.now = w.now.Add(10 * time.Second)
	w.expect("but then", "sum-0:1 sum-1:1 sum-2:1 sum-3:1")
	w.end("sum-2", v1.PodSucceeded)
	w.expect("no more than is missing", "sum-0:1 sum-1:1 sum-2:1 sum-3:1")
	w.end("sum-3", v1.PodSucceeded)
	w.expect("done", "sum-0:1 sum-1:1 sum-2:1 sum-3:1")
	if got := condition(w.plan); got != "Complete CompletionsReached" || w.plan.Expired {
		t.Errorf("condition %q, expired %v", got, w.plan.Expired)
	}
	w.now = w.now.Add(time.Minute)
	if w.step(); !w.plan.Expired {
		t.Error("its time after the end is over, and it stays")
	}
}

func TestJobFails(t *testing.T) {
	w := &world{t: t, now: time.Unix(1e9, 0), object: read(t, fmt.Sprintf(sum, ""))}
	w.step()
	w.end("sum-0", v1.PodFailed)
	w.end("sum-1", v1.PodFailed)
	w.now = w.now.Add(time.Hour)
	w.expect("more failures than may be", "sum-0:1 sum-1:1")
	if got := condition(w.plan); got != "Failed BackoffLimitExceeded" {
		t.Errorf("condition %q", got)
	}

	w = &world{t: t, now: time.Unix(1e9, 0), object: read(t, fmt.Sprintf(sum, "  activeDeadlineSeconds: 5"))}
	w.step()
	w.end("sum-0", v1.PodSucceeded)
	w.step()
	w.now = w.now.Add(5 * time.Second)
	w.expect("too late: what runs is ended, and stays as the record of that", "sum-0:1 sum-1:1 sum-2:1")
	if got := condition(w.plan); got != "FailureTarget DeadlineExceeded" {
		t.Errorf("condition %q", got)
	}
	if got := w.ending(); got != "sum-1 sum-2" {
		t.Errorf("ends %s", got)
	}
}

// ending returns the running pods that the workload ends.
func (w *world) ending() string {
	var names []string
	for _, p := range w.pods {
		if p.Annotations[podsync.AnnotationEnded] != "" && !podsync.Terminal(&p.Status) {
			names = append(names, p.Name)
		}
	}
	return strings.Join(names, " ")
}

// A Job whose only pod was ended, by its deadline or after too many restarts, stays failed: it
// neither starts again nor is removed early.
func TestJobStaysFailed(t *testing.T) {
	for _, test := range []struct {
		fields, reason string
		late           time.Duration
		restarts       int32
	}{
		{"  activeDeadlineSeconds: 5", "DeadlineExceeded", 5 * time.Second, 0},
		{"", "BackoffLimitExceeded", 0, 1}, // the first restart reaches a limit of one, as in Kubernetes
	} {
		text := strings.NewReplacer("Never", "OnFailure", "completions: 3", "ttlSecondsAfterFinished: 60", "parallelism: 2", "parallelism: 1").Replace(sum)
		w := &world{t: t, now: time.Unix(1e9, 0), object: read(t, fmt.Sprintf(text, test.fields))}
		w.expect("at first", "sum-0:1")
		w.pods[0].Status = v1.PodStatus{Phase: v1.PodRunning, StartTime: &metav1.Time{Time: w.now}, ContainerStatuses: []v1.ContainerStatus{{RestartCount: test.restarts}}}
		w.now = w.now.Add(test.late)
		for _, what := range []string{"failed", "still failed"} {
			w.expect(what, "sum-0:1")
			if got := condition(w.plan); got != "FailureTarget "+test.reason || w.ending() != "sum-0" || w.plan.Expired {
				t.Errorf("%s: condition %q, ends %q, expired %v", what, got, w.ending(), w.plan.Expired)
			}
		}
		w.end("sum-0", v1.PodFailed)
		w.now = w.now.Add(59 * time.Second)
		w.expect("the pod has ended", "sum-0:1")
		if got := condition(w.plan); got != "Failed "+test.reason || w.plan.Expired {
			t.Errorf("condition %q, expired %v", got, w.plan.Expired)
		}
		w.now = w.now.Add(time.Second)
		if w.step(); !w.plan.Expired {
			t.Error("its time after the end is over, and it stays")
		}
	}
}

// A Job that is complete stays complete if its limit is lowered, as for Kubernetes, whose controller
// looks at no Job that is over.
func TestJobStaysComplete(t *testing.T) {
	w := &world{t: t, now: time.Unix(1e9, 0), object: read(t, strings.Replace(fmt.Sprintf(sum, ""), "completions: 3", "completions: 1", 1))}
	w.step()
	w.end("sum-0", v1.PodFailed)
	w.now = w.now.Add(time.Minute)
	w.step()
	w.end("sum-1", v1.PodSucceeded)
	w.expect("complete", "sum-0:1 sum-1:1")
	w.object.(*batchv1.Job).Spec.BackoffLimit = new(int32)
	w.expect("still complete", "sum-0:1 sum-1:1")
	if got := condition(w.plan); got != "Complete CompletionsReached" {
		t.Errorf("condition %q", got)
	}
}

// A pod that does not fit on the node has no containers with an end time. The next pod still waits
// for the backoff, and a finished Job stays for its TTL.
func TestJobPodRejected(t *testing.T) {
	w := &world{t: t, now: time.Unix(1e9, 0), object: read(t, fmt.Sprintf(sum, "  ttlSecondsAfterFinished: 60"))}
	w.step()
	reject := func(i int) {
		w.pods[i].Status = v1.PodStatus{Phase: v1.PodFailed, Reason: "OutOfcpu", StartTime: &metav1.Time{Time: w.now}}
	}
	reject(0)
	w.expect("not at once", "sum-0:1 sum-1:1")
	w.now = w.now.Add(10 * time.Second)
	w.expect("but then", "sum-0:1 sum-1:1 sum-2:1")
	for i := range w.pods {
		reject(i)
	}
	if w.step(); condition(w.plan) != "Failed BackoffLimitExceeded" || w.plan.Expired {
		t.Errorf("condition %q, expired %v", condition(w.plan), w.plan.Expired)
	}
}

// apply changes an object in place, as the API does.
func (w *world) apply(text string) {
	uid := w.object.GetUID()
	w.object = read(w.t, text)
	w.object.SetUID(uid)
}

// A suspended Job has no running pods. A Job that is resumed, or edited outside of its template,
// continues where it was.
func TestJobSuspended(t *testing.T) {
	w := &world{t: t, now: time.Unix(1e9, 0), object: read(t, fmt.Sprintf(sum, ""))}
	w.step()
	w.end("sum-0", v1.PodSucceeded)
	w.apply(fmt.Sprintf(sum, "  suspend: true"))
	w.expect("suspended", "sum-0:1")
	if s := w.plan.Status.(*batchv1.Job).Status; condition(w.plan) != "Suspended JobSuspended" || s.StartTime != nil || s.Active != 0 || s.Succeeded != 1 {
		t.Errorf("status %+v", s)
	}
	w.apply(fmt.Sprintf(sum, "  suspend: true\n  activeDeadlineSeconds: 5"))
	w.now = w.now.Add(time.Hour)
	w.expect("suspended for longer than its deadline", "sum-0:1")
	if got := condition(w.plan); got != "Suspended JobSuspended" {
		t.Errorf("condition %q", got)
	}
	w.apply(fmt.Sprintf(sum, "  activeDeadlineSeconds: 5"))
	w.object.(*batchv1.Job).Status.StartTime = &metav1.Time{Time: w.now} // as the store sets it
	w.expect("resumed", "sum-0:1 sum-1:1 sum-2:1")
	if again := w.plan.Again; !again.Equal(w.now.Add(5 * time.Second)) {
		t.Errorf("its deadline is %v, not 5 s after it was resumed", again)
	}
	if got := condition(w.plan); got != "" {
		t.Errorf("condition %q", got)
	}
	w.apply(strings.Replace(fmt.Sprintf(sum, ""), "parallelism: 2", "parallelism: 1", 1))
	w.end("sum-1", v1.PodSucceeded)
	w.expect("fewer at a time", "sum-0:1 sum-1:1 sum-2:1")
	w.apply(strings.Replace(fmt.Sprintf(sum, ""), "i:1", "i:2", 1))
	w.expect("another template", "sum-0:2 sum-1:2")
}

// A Job continues with the pods of an earlier agent, whose revision was a hash of the whole Job.
func TestJobOfFormerAgent(t *testing.T) {
	w := &world{t: t, now: time.Unix(1e9, 0), object: read(t, fmt.Sprintf(sum, ""))}
	w.step()
	w.end("sum-0", v1.PodSucceeded)
	for i := range w.pods {
		w.pods[i].Annotations[workload.AnnotationRevision] = string(w.object.GetUID()) + "." + w.object.GetAnnotations()[manifest.AnnotationHash]
	}
	w.expect("the next agent", "sum-0:1 sum-1:1 sum-2:1")
}

// Each index of an indexed Job completes once, and its pod has the index.
func TestIndexedJob(t *testing.T) {
	w := &world{t: t, now: time.Unix(1e9, 0), object: read(t, fmt.Sprintf(sum, "  completionMode: Indexed"))}
	w.expect("at first", "sum-0-0:1 sum-1-0:1")
	w.end("sum-0-0", v1.PodFailed)
	w.now = w.now.Add(10 * time.Second)
	w.expect("a second try", "sum-0-0:1 sum-1-0:1 sum-0-1:1")
	w.end("sum-0-1", v1.PodSucceeded)
	w.end("sum-1-0", v1.PodSucceeded)
	w.expect("the last", "sum-0-0:1 sum-0-1:1 sum-1-0:1 sum-2-0:1")
	last := w.pods[len(w.pods)-1]
	if env := last.Spec.Containers[0].Env; len(env) != 1 || env[0].Name != "JOB_COMPLETION_INDEX" || env[0].Value != "2" || last.Labels["batch.kubernetes.io/job-completion-index"] != "2" || last.Spec.Hostname != "sum-2" {
		t.Errorf("its index: %v, %v, host name %q", env, last.Labels, last.Spec.Hostname)
	}
	w.end("sum-2-0", v1.PodSucceeded)
	if w.step(); condition(w.plan) != "Complete CompletionsReached" {
		t.Errorf("condition %q", condition(w.plan))
	}
}

// A deadline may be beyond the range of a time.Duration.
func TestJobDeadlineIsFarAway(t *testing.T) {
	w := &world{t: t, now: time.Unix(1e9, 0), object: read(t, fmt.Sprintf(sum, "  activeDeadlineSeconds: 18446744074"))}
	w.step()
	w.end("sum-0", v1.PodSucceeded)
	w.step()
	w.now = w.now.Add(time.Hour)
	w.expect("an hour later", "sum-0:1 sum-1:1 sum-2:1")
	if got := condition(w.plan); got != "" {
		t.Errorf("condition %q", got)
	}
}

// After an edit, surplus pods end and ended ones stay. A suspension is not a failure.
func TestJobScaled(t *testing.T) {
	three := strings.Replace(fmt.Sprintf(sum, ""), "completions: 3", "completions: 9", 1)
	w := &world{t: t, now: time.Unix(1e9, 0), object: read(t, three)}
	w.step()
	w.ready("sum-1")
	w.apply(strings.Replace(three, "parallelism: 2", "parallelism: 1", 1))
	w.expect("the one that is not ready ends", "sum-1:1")
	w.apply(strings.Replace(three, "parallelism: 2", "parallelism: 0", 1))
	w.expect("paused", "")
	w.apply(three)
	w.expect("and goes on", "sum-0:1 sum-1:1")
	if s := w.plan.Status.(*batchv1.Job).Status; s.Failed != 0 || s.Active != 2 {
		t.Errorf("status %+v", s)
	}
}

// If an indexed Job is scaled down, pods of indexes out of its range do not count as completions.
func TestIndexedJobScaled(t *testing.T) {
	text := fmt.Sprintf(strings.Replace(sum, "parallelism: 2", "parallelism: 3", 1), "  completionMode: Indexed")
	w := &world{t: t, now: time.Unix(1e9, 0), object: read(t, text)}
	w.expect("at first", "sum-0-0:1 sum-1-0:1 sum-2-0:1")
	w.end("sum-2-0", v1.PodSucceeded)
	w.apply(strings.Replace(text, "completions: 3", "completions: 1", 1))
	w.expect("only the first is wanted", "sum-0-0:1 sum-2-0:1")
	if got := condition(w.plan); got != "" {
		t.Errorf("condition %q", got)
	}
}

// A success ends the backoff.
func TestJobWaitsSinceItsLastSuccess(t *testing.T) {
	w := &world{t: t, now: time.Unix(1e9, 0), object: read(t, fmt.Sprintf(sum, ""))}
	w.step()
	w.end("sum-0", v1.PodFailed)
	w.expect("a failure", "sum-0:1 sum-1:1")
	w.now = w.now.Add(time.Second)
	w.end("sum-1", v1.PodSucceeded)
	w.expect("a success", "sum-0:1 sum-1:1 sum-2:1 sum-3:1")
}

// A Job whose deadline passes during a backoff has failed for good, and its TTL counts from the
// deadline.
func TestJobFailsWhileItWaits(t *testing.T) {
	text := fmt.Sprintf(sum, "  activeDeadlineSeconds: 600\n  ttlSecondsAfterFinished: 60\n  completions: 1")
	text = strings.Replace(strings.Replace(text, "  completions: 3\n", "", 1), "backoffLimit: 1", "backoffLimit: 9", 1)
	w := &world{t: t, now: time.Unix(1e9, 0), object: read(t, text)}
	for i := range 6 {
		w.step()
		w.end(fmt.Sprintf("sum-%d", i), v1.PodFailed)
		w.now = w.now.Add([...]time.Duration{10, 20, 40, 80, 160, 290}[i] * time.Second)
	}
	for range 2 {
		if w.step(); condition(w.plan) != "Failed DeadlineExceeded" || w.plan.Expired || !w.plan.Again.Equal(w.now.Add(60*time.Second)) {
			t.Errorf("condition %q, expired %v, next plan at %v", condition(w.plan), w.plan.Expired, w.plan.Again)
		}
		w.apply(text + "  suspend: true\n")
	}
}

// A Job ends with its last sidecar, from which its TTL counts.
func TestTimeToLiveCountsFromSidecars(t *testing.T) {
	w := &world{t: t, now: time.Unix(1e9, 0), object: read(t, fmt.Sprintf(sum, "  ttlSecondsAfterFinished: 20"))}
	for range 2 {
		w.step()
		for _, p := range w.pods {
			w.end(p.Name, v1.PodSucceeded)
		}
	}
	w.now = w.now.Add(30 * time.Second)
	for i := range w.pods {
		w.pods[i].Status.InitContainerStatuses = []v1.ContainerStatus{
			{State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{FinishedAt: metav1.Time{Time: w.now}}}}}
	}
	if w.step(); w.plan.Expired || condition(w.plan) != "Complete CompletionsReached" {
		t.Errorf("condition %q, expired %v", condition(w.plan), w.plan.Expired)
	}
}

// A clock that is set back a little does not remove a Job that has just ended.
func TestJobStaysWhenTheClockIsSetBack(t *testing.T) {
	w := &world{t: t, now: time.Unix(1e9, 0), object: read(t, fmt.Sprintf(sum, "  ttlSecondsAfterFinished: 3600"))}
	for range 2 {
		w.step()
		for _, p := range w.pods {
			w.end(p.Name, v1.PodSucceeded)
		}
	}
	w.now = w.now.Add(-time.Second)
	if w.step(); w.plan.Expired || condition(w.plan) != "Complete CompletionsReached" {
		t.Errorf("condition %q, expired %v", condition(w.plan), w.plan.Expired)
	}
}
