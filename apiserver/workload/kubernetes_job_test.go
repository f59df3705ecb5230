package workload_test

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/source"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// After the same events, a Job has the pods and the status that Kubernetes' Job controller gives it.
// TestSameJobs of test/kubelet recorded these, in the file that HISTORIES names or in testdata.
func TestJobAsKubernetes(t *testing.T) {
	compareHistories(t, "jobs.txt", 420, func(history string) (steps int, diff string) {
		r := replay{world: world{t: t, now: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)}, numbers: map[string]int{}}
		r.began = r.now
		return r.play(history)
	})
}

// compareHistories plays recorded histories, those of testdata if HISTORIES names no file. play
// returns how many steps were the same, at least in those of testdata, and the first difference, ""
// without one.
func compareHistories(t *testing.T, file string, least int, play func(history string) (same int, diff string)) {
	t.Helper()
	data, err := os.ReadFile(cmp.Or(os.Getenv("HISTORIES"), "testdata/kubernetes/"+file))
	if err != nil {
		t.Fatal(err)
	}
	histories, failed, same := strings.Split(string(data), "\n\n"), 0, 0
	for i, history := range histories {
		n, text := play(history)
		if same += n; text != "" {
			if failed++; failed <= 10 {
				t.Errorf("history %d: %s", i, text)
			}
		}
	}
	t.Logf("%d of %d histories differ; %d steps are the same", failed, len(histories), same)
	if failed == 0 && same < least && os.Getenv("HISTORIES") == "" {
		t.Errorf("only %d steps were compared, want %d: replays end too early", same, least)
	}
}

// A replay is a Job with the events of a recorded history. Its pods are numbered in the order of their
// creation.
type replay struct {
	world
	began   time.Time
	slow    bool           // pods that are to end do so only at the event "ends"
	numbers map[string]int // by name, of those that are wanted
	count   int
	dropped bool // a pod is not wanted any more, or does not exist
}

var (
	since, terminating = regexp.MustCompile(` since \d+`), regexp.MustCompile(` terminating \d+`)
	ended              = regexp.MustCompile(`; (Failed|Complete) [^;]*$`)
)

// play returns how many steps were the same, and the history up to the first difference, "" if there
// is none.
func (r *replay) play(history string) (same int, diff string) {
	lines := strings.Split(strings.TrimSuffix(history, "\n"), "\n")
	spec, slow := strings.CutPrefix(lines[0], "slow ")
	r.slow = slow
	r.object = read(r.t, `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"pi"},"spec":`+spec+"}")
	r.object.SetCreationTimestamp(metav1.Time{Time: r.now})
	for i, line := range lines[1:] {
		event, _, _ := strings.Cut(line, " +")
		if strings.HasPrefix(event, "completions") && (strings.Contains(lines[i], "CompletionsReached") || r.remembers()) {
			return i, "" // more completions continue a Job that is complete, and Kubernetes forgets what was done beyond fewer
		}
		var seconds int
		if _, err := fmt.Sscanf(line[len(event):], " +%d:", &seconds); err != nil {
			r.t.Fatal(line, err)
		}
		if over := strings.Contains(lines[i], "FailureTarget") || strings.Contains(lines[i], "SuccessCriteriaMet"); over && event == "resumed" {
			r.dropped = true // the store has when a Job was resumed, also of one that is over
		}
		r.happens(event)
		r.look(event == "ends")
		for range seconds {
			r.now = r.now.Add(time.Second)
			if again := r.plan.Again; !again.IsZero() && !again.After(r.now) {
				r.look(event == "ends")
			}
		}
		got := fmt.Sprintf("%s +%d: %s", event, seconds, r.state())
		if r.dropped { // the pods that remain tell when it began, how many end, and whether it has ended
			if terminating.MatchString(line) && !ended.MatchString(line) {
				got = strings.Replace(ended.ReplaceAllString(got, ""), " completed;", ";", 1)
			}
			line, got = terminating.ReplaceAllString(line, ""), terminating.ReplaceAllString(got, "")
			if since.FindString(line) != since.FindString(got) {
				if strings.Contains(lines[0], "activeDeadlineSeconds") {
					return i, "" // which counts from another time
				}
				line, got = since.ReplaceAllString(line, ""), since.ReplaceAllString(got, "")
			}
		}
		if got != line {
			return i, fmt.Sprintf("%s\nhere:\n%s", strings.Join(lines[:i+2], "\n"), got)
		}
	}
	return len(lines) - 1, ""
}

// remembers reports whether an index was done that the Job does not have any more.
func (r *replay) remembers() bool {
	return slices.ContainsFunc(r.pods, func(p source.WorkloadPod) bool {
		index, err := strconv.Atoi(p.Labels[batchv1.JobCompletionIndexAnnotation])
		return err == nil && p.Status.Phase == v1.PodSucceeded && index >= int(*r.object.(*batchv1.Job).Spec.Completions)
	})
}

// look plans until nothing more comes of it. The node sees new pods, and ends those that are to end.
func (r *replay) look(ends bool) {
	for range 3 {
		r.step()
		was := r.numbers
		r.numbers = map[string]int{}
		for i := range r.pods {
			p := &r.pods[i]
			n, ok := was[p.Name]
			if !ok {
				n = r.count
				r.count++
				p.Status = v1.PodStatus{Phase: v1.PodPending, StartTime: &metav1.Time{Time: r.now.Add(time.Duration(n) * time.Millisecond)}}
			}
			r.numbers[p.Name] = n
			delete(was, p.Name)
			if ending(*p) && !podsync.Terminal(&p.Status) && (!r.slow || ends) {
				r.stopped(p, v1.PodFailed)
			}
		}
		r.dropped = r.dropped || len(was) > 0 || len(r.pods) == 0
	}
}

func ending(p source.WorkloadPod) bool { return p.Annotations[podsync.AnnotationEnded] != "" }

// stopped ends the pod now.
func (r *replay) stopped(p *source.WorkloadPod, phase v1.PodPhase) {
	p.Status.Phase = phase
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionFalse, LastTransitionTime: metav1.Time{Time: r.now}}}
	if len(p.Status.ContainerStatuses) > 0 {
		p.Status.ContainerStatuses[0].State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{FinishedAt: metav1.Time{Time: r.now}}}
	}
}

// happens makes the event of a line of the history happen.
func (r *replay) happens(event string) {
	job := r.object.(*batchv1.Job)
	spec := &job.Spec
	var number int32
	var what string
	if _, err := fmt.Sscanf(event, "parallelism %d", &number); err == nil {
		spec.Parallelism = &number
		return
	}
	if _, err := fmt.Sscanf(event, "completions %d", &number); err == nil {
		spec.Completions, spec.Parallelism = &number, &number
		return
	}
	switch event {
	case "suspended":
		spec.Suspend = new(true)
		return
	case "resumed":
		spec.Suspend = new(false)
		job.Status.StartTime = &metav1.Time{Time: r.now} // as the store has it
		return
	case "begins", "ends", "time passes":
		return
	}
	if _, err := fmt.Sscanf(event, "%d %s", &number, &what); err != nil {
		r.t.Fatal(event, err)
	}
	for i := range r.pods {
		p := &r.pods[i]
		if r.numbers[p.Name] != int(number) {
			continue
		}
		switch what {
		case "runs":
			p.Status.Phase = v1.PodRunning
			p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "c", State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.Time{Time: r.now}}}}}
			p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.Time{Time: r.now}}}
		case "restarts":
			p.Status.ContainerStatuses[0].RestartCount++
		case "succeeds":
			r.stopped(p, v1.PodSucceeded)
		default:
			r.stopped(p, v1.PodFailed)
		}
	}
}

// state describes the Job as a history does.
func (r *replay) state() string {
	var b strings.Builder
	words := make([]string, r.count)
	for _, p := range r.pods {
		if n := r.numbers[p.Name]; !podsync.Terminal(&p.Status) && !ending(p) {
			words[n] = fmt.Sprint(n)
			if i := p.Labels[batchv1.JobCompletionIndexAnnotation]; i != "" {
				words[n] += "@" + i
			}
		}
	}
	s := r.plan.Status.(*batchv1.Job).Status
	ready, terminating := int32(0), int32(0)
	if s.Ready != nil {
		ready = *s.Ready
	}
	if s.Terminating != nil {
		terminating = *s.Terminating
	}
	fmt.Fprintf(&b, "pods %s; active %d ready %d succeeded %d failed %d", strings.Join(strings.Fields(strings.Join(words, " ")), " "), s.Active, ready, s.Succeeded, s.Failed)
	if s.CompletedIndexes != "" {
		fmt.Fprintf(&b, " completed %s", s.CompletedIndexes)
	}
	if terminating > 0 {
		fmt.Fprintf(&b, " terminating %d", terminating)
	}
	if s.StartTime != nil {
		fmt.Fprintf(&b, " since %.0f", s.StartTime.Sub(r.began).Seconds())
	}
	if s.CompletionTime != nil {
		fmt.Fprintf(&b, " completed")
	}
	for _, c := range s.Conditions {
		if c.Status == v1.ConditionTrue {
			fmt.Fprintf(&b, "; %s %s (%s)", c.Type, c.Reason, c.Message)
		}
	}
	return b.String()
}
