package workload

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/internal/timeline"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// A failed pod of a Job is replaced after 10 s, 20 s, 40 s and so on, at most 6 min, as in
// Kubernetes.
const (
	firstRetry = 10 * time.Second
	mostRetry  = 6 * time.Minute
)

// jobState summarizes the pods of a Job.
type jobState struct {
	*batchv1.Job
	now       time.Time
	pods      []source.WorkloadPod // those of this revision, by name
	active    []source.WorkloadPod
	succeeded []source.WorkloadPod
	failed    int         // pods that have failed
	fails     []time.Time // when pods failed since the last one succeeded
	restarts  int         // of the containers of active pods, if they restart on failure
	began     time.Time   // when the first pod started, or the Job was resumed
	lastEnd   time.Time   // when the last pod ended
	running   bool        // containers of ended pods are still running
}

func job(j *batchv1.Job, pods []source.WorkloadPod, now time.Time) source.Plan {
	s := observeJob(j, pods, now)
	plan := source.Plan{}
	reason, condition := s.finished()
	if late := s.deadline(); reason == batchv1.JobReasonDeadlineExceeded && !late.After(now) {
		s.lastEnd = timeline.Later(s.lastEnd, late)
	}
	switch {
	case condition != "":
		plan.Pods = s.kept(reason, condition)
		if ttl := j.Spec.TTLSecondsAfterFinished; ttl != nil && len(s.active) == 0 && !s.running {
			if gone := s.lastEnd.Add(time.Duration(*ttl) * time.Second); gone.After(now) {
				plan.Again = gone
			} else {
				plan.Expired = true
			}
		}
	case s.suspended():
		for _, p := range s.pods {
			if podsync.Terminal(&p.Status) {
				plan.Pods = append(plan.Pods, p.Pod)
			}
		}
	default:
		s.dropSurplus()
		for _, p := range s.pods {
			plan.Pods = append(plan.Pods, p.Pod)
		}
		more, again := s.more()
		for _, p := range more {
			plan.Pods, s.active = append(plan.Pods, p), append(s.active, source.WorkloadPod{Pod: p})
		}
		plan.Again = podsync.Earliest(again, s.deadline())
	}
	plan.Status = s.status(reason, condition)
	return plan
}

func (s *jobState) suspended() bool { return s.Spec.Suspend != nil && *s.Spec.Suspend }

// annotationComplete marks the pods of a Job that was complete; its value is the reason.
const annotationComplete = "io.crisp.workload.complete"

// kept returns the pods that stay after the Job's end, as its record. Active pods of a failed Job
// end, and stay too. Pods are marked with the end, so that it stays the same even if the Job is
// later suspended or its limits are changed.
func (s *jobState) kept(reason string, condition batchv1.JobConditionType) (pods []*v1.Pod) {
	for _, p := range s.pods {
		switch {
		case condition == batchv1.JobFailed && p.Annotations[podsync.AnnotationEnded] == "":
			pod := p.DeepCopy()
			pod.Annotations[podsync.AnnotationEnded] = reason
			pods = append(pods, pod)
		case condition == batchv1.JobComplete && podsync.Terminal(&p.Status) && p.Annotations[annotationComplete] == "":
			pod := p.DeepCopy()
			pod.Annotations[annotationComplete] = reason
			pods = append(pods, pod)
		case condition == batchv1.JobFailed || podsync.Terminal(&p.Status):
			pods = append(pods, p.Pod)
		}
	}
	return pods
}

// revision distinguishes a Job from the same Job before an edit of its template, and from a deleted
// Job of the same name. Every edit of a file changes the UID.
func revision(j *batchv1.Job) string {
	return string(j.UID) + "." + j.Spec.Template.Annotations[manifest.AnnotationHash] + "." + string(*j.Spec.CompletionMode)
}

// formerRevision is the revision in the format of earlier agents, which restarted a Job after an
// edit of any field.
func formerRevision(j *batchv1.Job) string {
	return string(j.UID) + "." + j.Annotations[manifest.AnnotationHash]
}

func observeJob(j *batchv1.Job, pods []source.WorkloadPod, now time.Time) jobState {
	s := jobState{Job: j, now: now}
	var lastSuccess time.Time
	for _, p := range pods {
		if r := p.Annotations[AnnotationRevision]; r != revision(j) && r != formerRevision(j) {
			continue // of the Job before an edit of its template
		}
		over := podsync.Terminal(&p.Status)
		surplus := s.isSurplus(p)
		if surplus && !over {
			continue
		}
		s.pods = append(s.pods, p)
		if at := p.Status.StartTime; at != nil {
			s.began = podsync.Earliest(s.began, at.Time)
		}
		end := endOf(p.Status)
		if over && end.IsZero() {
			end = overSince(p.Status) // rejected, or ended before its containers started
		}
		s.lastEnd = timeline.Later(s.lastEnd, end)
		s.running = s.running || over && runs(p.Status)
		switch p.Status.Phase {
		case v1.PodSucceeded:
			if !surplus {
				s.succeeded = append(s.succeeded, p)
			}
			lastSuccess = timeline.Later(lastSuccess, end)
		case v1.PodFailed:
			s.failed++
			s.fails = append(s.fails, end)
		default:
			s.active = append(s.active, p)
			s.restarts += restarts(p)
		}
	}
	s.fails = slices.DeleteFunc(s.fails, lastSuccess.After)
	if resumed := j.Status.StartTime; resumed != nil && !s.began.IsZero() {
		s.began = timeline.Later(s.began, resumed.Time)
	}
	slices.SortFunc(s.pods, func(a, b source.WorkloadPod) int { return strings.Compare(a.Name, b.Name) })
	if s.lastEnd.IsZero() {
		s.lastEnd = j.CreationTimestamp.Time // of a Job without completions to reach
	}
	return s
}

// isSurplus reports whether a pod has an index that is no longer in the Job's range.
func (s *jobState) isSurplus(p source.WorkloadPod) bool {
	index, err := strconv.Atoi(p.Labels[batchv1.JobCompletionIndexAnnotation])
	return *s.Spec.CompletionMode == batchv1.IndexedCompletion && err == nil && index >= int(*s.Spec.Completions)
}

// runs reports whether a container of a pod runs.
func runs(s v1.PodStatus) bool {
	return slices.ContainsFunc(slices.Concat(s.InitContainerStatuses, s.ContainerStatuses), func(c v1.ContainerStatus) bool { return c.State.Running != nil })
}

// restarts returns the number of restarts of a pod's containers after failures.
func restarts(p source.WorkloadPod) int {
	n := 0
	if p.Spec.RestartPolicy == v1.RestartPolicyOnFailure {
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			n += int(c.RestartCount)
		}
	}
	return n
}

// endOf returns when the last container of a pod ended, the zero time if none has.
func endOf(s v1.PodStatus) time.Time {
	var end time.Time
	for _, c := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses) { // sidecars are init containers
		if t := c.State.Terminated; t != nil && t.FinishedAt.After(end) {
			end = t.FinishedAt.Time
		}
	}
	return end
}

// finished returns the reason and the condition of a Job that is over, "" if it is not.
func (s *jobState) finished() (reason string, condition batchv1.JobConditionType) {
	completions := s.Spec.Completions
	for _, p := range s.pods {
		if reason := p.Annotations[podsync.AnnotationEnded]; reason != "" {
			return reason, batchv1.JobFailed // final
		}
	}
	was := slices.ContainsFunc(s.pods, func(p source.WorkloadPod) bool { return p.Annotations[annotationComplete] != "" })
	switch { // in the order of Kubernetes' Job controller
	case was && len(s.succeeded) > 0 && (completions == nil || len(s.succeeded) >= int(*completions)):
		return batchv1.JobReasonCompletionsReached, batchv1.JobComplete // that is final, unless more completions are wanted
	case s.failed > int(*s.Spec.BackoffLimit), s.restarts >= max(1, int(*s.Spec.BackoffLimit)):
		return batchv1.JobReasonBackoffLimitExceeded, batchv1.JobFailed
	case completions != nil && len(s.succeeded) >= int(*completions):
		return batchv1.JobReasonCompletionsReached, batchv1.JobComplete
	case completions == nil && len(s.succeeded) > 0 && (len(s.active) == 0 || s.suspended()):
		return batchv1.JobReasonCompletionsReached, batchv1.JobComplete
	case s.suspended(): // its deadline does not end it now
	case !s.deadline().IsZero() && !s.deadline().After(s.now):
		return batchv1.JobReasonDeadlineExceeded, batchv1.JobFailed
	}
	return "", ""
}

// deadline returns the time of the Job's deadline; zero if it has none, or has not started.
func (s *jobState) deadline() time.Time {
	if s.Spec.ActiveDeadlineSeconds == nil || s.began.IsZero() {
		return time.Time{}
	}
	return s.began.Add(podsync.Seconds(*s.Spec.ActiveDeadlineSeconds))
}

// want returns the number of pods that should be active.
func (s *jobState) want() int {
	switch completions := s.Spec.Completions; {
	case completions != nil:
		return min(int(*s.Spec.Parallelism), int(*completions)-len(s.succeeded))
	case len(s.succeeded) > 0:
		return len(s.active) // after the first success no more pods start, and the active ones may finish
	}
	return int(*s.Spec.Parallelism)
}

// dropSurplus drops active pods after the parallelism was lowered, in the order of Kubernetes' Job
// controller: those that do not run first, then those that are not ready; of others those that became
// ready last, were restarted more often, or are the newest.
func (s *jobState) dropSurplus() {
	want := s.want()
	if len(s.active) <= want {
		return
	}
	started := func(p source.WorkloadPod) time.Time {
		if p.Status.StartTime == nil {
			return s.now
		}
		return p.Status.StartTime.Time
	}
	slices.SortFunc(s.active, func(a, b source.WorkloadPod) int {
		sinceA, readyA := availableAt(a.Status, 0, s.now)
		sinceB, readyB := availableAt(b.Status, 0, s.now)
		return cmp.Or(first(a.Status.Phase == v1.PodRunning, b.Status.Phase == v1.PodRunning), first(readyA, readyB), sinceA.Compare(sinceB),
			cmp.Compare(restarts(a), restarts(b)), started(a).Compare(started(b)), strings.Compare(a.Name, b.Name))
	})
	for _, gone := range s.active[want:] {
		s.pods = slices.DeleteFunc(s.pods, func(p source.WorkloadPod) bool { return p.Name == gone.Name })
	}
	s.active = s.active[:want]
}

// first orders what is true before what is not.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// more returns the new pods to start now, or, while they must wait, when to plan again.
func (s *jobState) more() (pods []*v1.Pod, again time.Time) {
	missing := s.want() - len(s.active)
	if missing <= 0 {
		return nil, time.Time{}
	}
	if n := len(s.fails); n > 0 {
		delay := min(firstRetry<<min(n-1, 10), mostRetry)
		if at := podsync.After(slices.MaxFunc(s.fails, time.Time.Compare), delay, s.now); at.After(s.now) {
			return nil, at
		}
	}
	if *s.Spec.CompletionMode == batchv1.IndexedCompletion {
		return s.nextIndexed(missing), time.Time{}
	}
	return s.next(missing), time.Time{}
}

// next makes the next n pods of a Job pi: pi-0, pi-1 and so on.
func (s *jobState) next(n int) (pods []*v1.Pod) {
	taken := map[string]bool{}
	for _, p := range s.pods {
		taken[p.Name] = true
	}
	name := func(i int) string { return s.Name + "-" + strconv.Itoa(i) }
	for _, i := range firstFree(n, nil, func(i int) bool { return taken[name(i)] }) {
		pods = append(pods, s.pod(name(i), ""))
	}
	return pods
}

// nextIndexed makes at most n pods of an indexed Job pi, named pi-<index>-<try>, for the first
// indexes that have neither a running nor a successful pod.
func (s *jobState) nextIndexed(n int) (pods []*v1.Pod) {
	busy, try := map[string]bool{}, map[string]int{}
	for _, p := range s.pods {
		index, last, _ := strings.Cut(strings.TrimPrefix(p.Name, s.Name+"-"), "-")
		busy[index] = busy[index] || p.Status.Phase != v1.PodFailed
		if number, err := strconv.Atoi(last); err == nil {
			try[index] = max(try[index], number+1)
		}
	}
	for i := range int(*s.Spec.Completions) {
		if len(pods) == n {
			break // there may be 2^31 indexes
		}
		if index := strconv.Itoa(i); !busy[index] {
			pods = append(pods, s.pod(s.Name+"-"+index+"-"+strconv.Itoa(try[index]), index))
		}
	}
	return pods
}

func (s *jobState) pod(name, index string) *v1.Pod {
	labels := map[string]string{batchv1.JobNameLabel: s.Name, "job-name": s.Name}
	if index != "" {
		labels[batchv1.JobCompletionIndexAnnotation] = index
	}
	pod := makePod(s.Job, &s.Spec.Template, name, revision(s.Job), labels)
	if index == "" {
		return pod
	}
	pod.Annotations[batchv1.JobCompletionIndexAnnotation] = index
	if host := s.Name + "-" + index; len(host) <= validation.DNS1123LabelMaxLength {
		pod.Spec.Hostname = host // as in Kubernetes' Job controller; all tries of an index share it
	}
	for c := range podsync.Containers(&pod.Spec) {
		c.Env = append(c.Env, v1.EnvVar{Name: "JOB_COMPLETION_INDEX", Value: index})
	}
	return pod
}

// jobMessages are those of Kubernetes' controller, by the reason of a Job's end.
var jobMessages = map[string]string{
	batchv1.JobReasonCompletionsReached:   "Reached expected number of succeeded pods",
	batchv1.JobReasonBackoffLimitExceeded: "Job has reached the specified backoff limit",
	batchv1.JobReasonDeadlineExceeded:     "Job was active longer than specified deadline",
}

func (s *jobState) status(reason string, condition batchv1.JobConditionType) manifest.Object {
	j := s.DeepCopy()
	j.Status = batchv1.JobStatus{Active: int32(len(s.active)), Ready: new(int32), Succeeded: int32(len(s.succeeded)), Failed: int32(s.failed), CompletedIndexes: s.completedIndexes()}
	for _, p := range s.active {
		if _, ready := availableAt(p.Status, 0, s.now); ready {
			*j.Status.Ready++
		}
	}
	if !s.began.IsZero() {
		j.Status.StartTime = &metav1.Time{Time: s.began}
	}
	switch {
	case condition == "" && s.suspended(): // with the reason and message of Kubernetes' controller
		j.Status.Active, j.Status.Ready, j.Status.StartTime = 0, new(int32), nil
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: v1.ConditionTrue, Reason: "JobSuspended", Message: "Job suspended"}}
		return j
	case condition == "":
		return j
	}
	at := metav1.Time{Time: s.lastEnd}
	is := func(t batchv1.JobConditionType) {
		j.Status.Conditions = append(j.Status.Conditions, batchv1.JobCondition{Type: t, Status: v1.ConditionTrue, Reason: reason, Message: jobMessages[reason], LastTransitionTime: at})
	}
	j.Status.Active, j.Status.Ready = 0, new(int32)
	target, ended := batchv1.JobSuccessCriteriaMet, !s.running
	if condition == batchv1.JobFailed {
		j.Status.Failed += int32(len(s.active)) // they end as failed
		j.Status.Terminating = new(int32(len(s.active)))
		target, ended = batchv1.JobFailureTarget, ended && len(s.active) == 0
	}
	if is(target); ended {
		is(condition)
	}
	if ended && condition == batchv1.JobComplete {
		j.Status.CompletionTime = &at
	}
	return j
}

// completedIndexes returns the indexes of an indexed Job that are done, as "0,2-4".
func (s *jobState) completedIndexes() string {
	var done []int
	for _, p := range s.succeeded {
		if index, err := strconv.Atoi(p.Labels[batchv1.JobCompletionIndexAnnotation]); err == nil {
			done = append(done, index)
		}
	}
	slices.Sort(done)
	var words []string
	for i := 0; i < len(done); {
		last := i
		for last+1 < len(done) && done[last+1] == done[last]+1 {
			last++
		}
		word := strconv.Itoa(done[i])
		if separator := "-"; last > i {
			if last == i+1 {
				separator = ","
			}
			word += separator + strconv.Itoa(done[last])
		}
		words, i = append(words, word), last+1
	}
	return strings.Join(words, ",")
}
