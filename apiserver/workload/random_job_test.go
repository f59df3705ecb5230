package workload_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/source"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Job goes through random events. Each plan must follow the rules of Kubernetes' Job controller
// for the current pods (reference), an end must be final, and once pods stop failing the Job must
// finish.
func TestJobConverges(t *testing.T) {
	for seed := range 300 {
		f := newFleet(t, uint64(seed))
		g := &jobFleet{fleet: *f, seed: seed, back: f.chance(3)}
		g.object = read(t, g.text())
		g.job = g.object.(*batchv1.Job)
		for i := range 160 {
			calm := i >= 80
			g.edit(calm)
			g.check()
			if g.plan.Expired {
				break
			}
			for k := range g.pods {
				g.live(&g.pods[k], calm)
			}
			g.now = g.now.Add(time.Duration(g.rng.IntN(30)) * time.Second)
			switch {
			case calm:
				g.now = g.now.Add(time.Minute)
			case g.back && g.chance(20):
				g.now = g.now.Add(-time.Duration(g.rng.IntN(300)) * time.Second)
			}
		}
		if g.over == "" || g.job.Spec.TTLSecondsAfterFinished != nil && !g.plan.Expired {
			g.breaks(seed, "the Job is %q at the end, expired: %t", g.over, g.plan.Expired)
		}
	}
}

// A jobFleet is a fleet whose workload is a Job.
type jobFleet struct {
	fleet
	seed int
	job  *batchv1.Job
	back bool   // the clock is sometimes set back
	over string // the reason of the Job's end
}

// text returns a random Job. Only fields that cannot be changed later are random.
func (g *jobFleet) text() string {
	mode, policy, more := [...]string{"NonIndexed", "Indexed"}[g.rng.IntN(2)], [...]string{"Never", "OnFailure"}[g.rng.IntN(2)], ""
	if mode == "Indexed" || !g.chance(4) {
		more += fmt.Sprintf("  completions: %d\n", g.rng.IntN(5))
	}
	if !g.back && g.chance(2) {
		more += fmt.Sprintf("  activeDeadlineSeconds: %d\n", 30+g.rng.IntN(900))
	}
	if g.chance(2) {
		more += fmt.Sprintf("  ttlSecondsAfterFinished: %d\n", g.rng.IntN(100))
	}
	return fmt.Sprintf(`apiVersion: batch/v1
kind: Job
metadata: {name: pi}
spec:
  parallelism: %d
  backoffLimit: %d
  completionMode: %s
%s  template: {spec: {restartPolicy: %s, containers: [{name: a, image: "i:1"}]}}
`, 1+g.rng.IntN(3), g.rng.IntN(7), mode, more, policy)
}

// edit suspends, resumes or scales the Job, as the object store does. When calm it lets the Job
// run.
func (g *jobFleet) edit(calm bool) {
	spec := &g.job.Spec
	was := spec.Suspend != nil && *spec.Suspend
	if is := !calm && (was != g.chance(8)); is != was {
		spec.Suspend = &is
		if g.note("suspended: %t", is); !is {
			g.job.Status.StartTime = &metav1.Time{Time: g.now}
		}
	}
	if calm {
		spec.Parallelism = new(max(*spec.Parallelism, 1))
	} else if g.chance(8) {
		spec.Parallelism = new(int32(g.rng.IntN(4)))
		g.note("parallelism: %d", *spec.Parallelism)
	}
	if g.over == "" && *spec.CompletionMode == batchv1.IndexedCompletion && !calm && g.chance(10) {
		spec.Completions = new(int32(1 + g.rng.IntN(5)))
		g.note("completions: %d", *spec.Completions)
	}
}

// live advances a pod by a random step: it starts, runs, is restarted or ends, or the Job ends it.
func (g *jobFleet) live(p *source.WorkloadPod, calm bool) {
	s := &p.Status
	running := len(s.ContainerStatuses) > 0 && s.ContainerStatuses[0].State.Running != nil
	marked := p.Annotations[podsync.AnnotationEnded] != ""
	stop := func() {
		s.ContainerStatuses[0].State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{FinishedAt: metav1.Time{Time: g.now}}}
	}
	switch {
	case podsync.Terminal(s):
		if running && (calm || g.chance(3)) {
			stop()
		}
	case marked: // its containers end later
		s.Phase = v1.PodFailed
		if s.StartTime == nil {
			s.StartTime = &metav1.Time{Time: g.now}
		}
	case s.StartTime == nil && g.chance(20): // it does not fit
		*s = v1.PodStatus{Phase: v1.PodFailed, Reason: "OutOfcpu", StartTime: &metav1.Time{Time: g.now}}
	case s.StartTime == nil && (calm || !g.chance(4)):
		*s = v1.PodStatus{Phase: v1.PodRunning, StartTime: &metav1.Time{Time: g.now}, ContainerStatuses: []v1.ContainerStatus{{State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}}
		s.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.Time{Time: g.now}}}
	case !running || !calm && !g.chance(5):
	case !calm && (p.Spec.RestartPolicy == v1.RestartPolicyOnFailure && g.chance(2) || g.chance(8)): // by its restart policy, or by a restart rule
		s.ContainerStatuses[0].RestartCount++
	default:
		stop()
		s.Phase = v1.PodSucceeded
		if !calm && g.chance(2) {
			s.Phase = v1.PodFailed
		}
	}
}

// A reference is the state of the pods as Kubernetes' Job controller would see it.
type reference struct {
	active, done           map[string]bool // pods, by name
	succeeded, failed      int
	restarts               int
	running                bool
	began, lastEnd, lastOK time.Time
	fails                  []time.Time // since the last success
}

func (g *jobFleet) reference() reference {
	r := reference{active: map[string]bool{}, done: map[string]bool{}, lastEnd: g.job.CreationTimestamp.Time}
	var ends []time.Time // of failed pods
	first := true
	for _, p := range g.pods {
		s := p.Status
		over := podsync.Terminal(&s)
		if g.beyond(p) && !over {
			continue // being removed, so it does not count
		}
		if s.StartTime != nil && (r.began.IsZero() || s.StartTime.Time.Before(r.began)) {
			r.began = s.StartTime.Time
		}
		var end time.Time
		for _, c := range s.ContainerStatuses {
			if c.State.Terminated != nil {
				end = c.State.Terminated.FinishedAt.Time
			}
			r.running = r.running || over && c.State.Running != nil
			if !over && p.Spec.RestartPolicy == v1.RestartPolicyOnFailure {
				r.restarts += int(c.RestartCount)
			}
		}
		if over && end.IsZero() {
			end = s.StartTime.Time
		}
		if !end.IsZero() && (first || end.After(r.lastEnd)) {
			r.lastEnd, first = end, false
		}
		if !over {
			r.active[p.Name] = true
			continue
		}
		r.done[p.Name] = true
		switch {
		case s.Phase == v1.PodFailed:
			r.failed, ends = r.failed+1, append(ends, end)
		default:
			if !g.beyond(p) {
				r.succeeded++
			}
			if end.After(r.lastOK) {
				r.lastOK = end
			}
		}
	}
	for _, end := range ends {
		if !end.Before(r.lastOK) {
			r.fails = append(r.fails, end)
		}
	}
	if at := g.job.Status.StartTime; at != nil && !r.began.IsZero() && at.After(r.began) {
		r.began = at.Time
	}
	return r
}

// beyond reports whether a pod's index is out of the Job's range.
func (g *jobFleet) beyond(p source.WorkloadPod) bool {
	index := 0
	_, err := fmt.Sscanf(p.Name, "pi-%d-", &index)
	return err == nil && *g.job.Spec.CompletionMode == batchv1.IndexedCompletion && index >= int(*g.job.Spec.Completions)
}

// end returns the reason of the Job's end, "" if it is not over.
func (g *jobFleet) end(r reference) string {
	spec := g.job.Spec
	limit, suspended := int(*spec.BackoffLimit), spec.Suspend != nil && *spec.Suspend
	switch {
	case g.over != "":
		return g.over
	case r.failed > limit, r.restarts > 0 && r.restarts >= limit:
		return "BackoffLimitExceeded"
	case spec.Completions != nil && r.succeeded >= int(*spec.Completions), spec.Completions == nil && r.succeeded > 0 && (len(r.active) == 0 || suspended):
		return "CompletionsReached"
	case suspended, spec.ActiveDeadlineSeconds == nil, r.began.IsZero():
	case g.now.Sub(r.began) >= time.Duration(*spec.ActiveDeadlineSeconds)*time.Second:
		return "DeadlineExceeded"
	}
	return ""
}

// check plans, and compares the plan with the reference.
func (g *jobFleet) check() {
	g.t.Helper()
	r := g.reference()
	want, spec := g.end(r), g.job.Spec
	var deadline time.Time
	if d := spec.ActiveDeadlineSeconds; d != nil && !r.began.IsZero() {
		deadline = r.began.Add(time.Duration(*d) * time.Second)
	}
	g.planned(g.seed)
	status := g.plan.Status.(*batchv1.Job).Status
	got, is := "", ""
	for _, c := range status.Conditions {
		is += string(c.Type) + " "
		if c.Type != batchv1.JobSuspended { // which is no end
			got = c.Reason
		}
	}
	wantIs := map[string]string{"": is, "CompletionsReached": "SuccessCriteriaMet Complete "}[want]
	if wantIs == "" && want != "" {
		wantIs = "FailureTarget Failed "
	}
	if want != "" && (r.running || len(r.active) > 0 && want != "CompletionsReached") {
		wantIs, _, _ = strings.Cut(wantIs, " ")
		wantIs += " "
	}
	if is != wantIs {
		g.breaks(g.seed, "the Job is %sfor %q, want %s", is, got, wantIs)
	}
	if got != want {
		g.breaks(g.seed, "the Job is over for %q, want %q: %+v", got, want, r)
	}
	g.over = want
	active, failed := g.kept(r, want), r.failed
	if want != "" && want != "CompletionsReached" {
		failed += len(r.active)
	}
	if int(status.Active) != active || int(status.Succeeded) != r.succeeded || int(status.Failed) != failed {
		g.breaks(g.seed, "status %+v, with %d active: %+v", status, active, r)
	}
	switch suspended := spec.Suspend != nil && *spec.Suspend; {
	case want != "":
		if want == "DeadlineExceeded" && deadline.After(r.lastEnd) && !deadline.After(g.now) {
			r.lastEnd = deadline
		}
		g.expires(r, active)
	case suspended && active > 0:
		g.breaks(g.seed, "%d pods run of a suspended Job", active)
	case !suspended:
		g.goesOn(r, active, deadline)
	}
}

// kept checks that ended pods stay and that each index has one pod, and returns the number of
// active pods.
func (g *jobFleet) kept(r reference, end string) (active int) {
	g.t.Helper()
	busy := map[string]bool{} // indexes
	stay := map[string]bool{}
	for _, p := range g.pods {
		stay[p.Name] = true
		over, marked := podsync.Terminal(&p.Status), p.Annotations[podsync.AnnotationEnded] != ""
		if marked != (end != "" && end != "CompletionsReached") || end == "CompletionsReached" && !over {
			g.breaks(g.seed, "%s is marked: %t, has ended: %t, in a Job that is over for %q", p.Name, marked, over, end)
		}
		if !over && !marked {
			active++
		}
		if index := p.Labels[batchv1.JobCompletionIndexAnnotation]; index != "" && p.Status.Phase != v1.PodFailed && !marked {
			if busy[index] || g.beyond(p) && !over {
				g.breaks(g.seed, "%s is one pod too many", p.Name)
			}
			busy[index] = true
		}
	}
	for name := range r.done {
		if !stay[name] {
			g.breaks(g.seed, "%s has ended, and is lost", name)
		}
	}
	return active
}

// expires checks that a finished Job is removed at the end of its TTL and not earlier.
func (g *jobFleet) expires(r reference, active int) {
	g.t.Helper()
	ttl := g.job.Spec.TTLSecondsAfterFinished
	if ttl == nil || r.running || len(r.active) > 0 {
		if g.plan.Expired {
			g.breaks(g.seed, "the Job goes: %+v", r)
		}
		return
	}
	at := r.lastEnd.Add(time.Duration(*ttl) * time.Second)
	if g.plan.Expired == at.After(g.now) || !g.plan.Expired && !g.plan.Again.Equal(at) {
		g.breaks(g.seed, "expired: %t, planned again at %v, want %v", g.plan.Expired, g.plan.Again, at)
	}
}

// goesOn checks that there are as many pods as wanted or, during a backoff, that none was added.
func (g *jobFleet) goesOn(r reference, active int, deadline time.Time) {
	g.t.Helper()
	spec := g.job.Spec
	want := int(*spec.Parallelism)
	switch {
	case spec.Completions != nil:
		want = min(want, int(*spec.Completions)-r.succeeded)
	case r.succeeded > 0:
		want = len(r.active)
	}
	again := deadline
	if n := len(r.fails); n > 0 && len(r.active) < want {
		last, delay := r.fails[0], 10*time.Second
		for i, at := range r.fails {
			if at.After(last) {
				last = at
			}
			if i > 0 {
				delay = min(2*delay, 6*time.Minute)
			}
		}
		if at := last.Add(delay); at.After(g.now) && !last.After(g.now) { // a clock that was set back ends the backoff
			want = len(r.active)
			if again.IsZero() || at.Before(again) {
				again = at
			}
		}
	}
	if active != want || !g.plan.Again.Equal(again) {
		g.breaks(g.seed, "%d pods run and the next plan is at %v, want %d at %v: %+v", active, g.plan.Again, want, again, r)
	}
}
