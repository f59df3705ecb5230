package kubelet

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/job"
	"k8s.io/kubernetes/pkg/features"
)

// The agent runs random Jobs, CASES of them, as Kubernetes' Job controller does, whatever their pods
// do and however they are edited. An ordinary run compares the controller's decisions with those that
// are recorded for TestJobAsKubernetes of apiserver/workload, which RECORD=yes writes; SEED chooses other Jobs.
func TestSameJobs(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.StaleControllerConsistencyJob, false) // a fake API server has no resource versions
	sameHistories(t, "jobs.txt", "TestJobAsKubernetes", 30, func(t *testing.T, random *rand.Rand) string {
		w := startCluster(t, random, func(ctx context.Context, w *cluster, shared informers.SharedInformerFactory) []func() {
			c, err := job.NewController(ctx, w.client, shared.Core().V1().Pods(), shared.Batch().V1().Jobs(), nil, nil)
			check(t, err)
			return []func(){func() { c.Run(ctx, 1) }}
		})
		return w.history()
	})
}

// sameHistories plays histories in fake time, and has a test of apiserver/workload compare them with the
// agent's. Those of an ordinary run must be the recorded ones.
func sameHistories(t *testing.T, file, test string, cases int, play func(*testing.T, *rand.Rand) string) {
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("SEED"), "1"), 10, 64)
	check(t, err)
	count, err := strconv.Atoi(cmp.Or(os.Getenv("CASES"), strconv.Itoa(cases)))
	check(t, err)
	var histories []string
	for i := range count {
		synctest.Test(t, func(t *testing.T) {
			histories = append(histories, play(t, rand.New(rand.NewPCG(seed, uint64(i)))))
		})
	}
	all, recorded := strings.Join(histories, "\n"), filepath.Join("../../apiserver/workload/testdata/kubernetes", file)
	if os.Getenv("RECORD") != "" {
		check(t, os.WriteFile(recorded, []byte(all), 0o644))
	}
	if os.Getenv("SEED") == "" && os.Getenv("CASES") == "" {
		data, err := os.ReadFile(recorded)
		check(t, err)
		if string(data) != all {
			t.Errorf("Kubernetes' controller does not do what %s has: RECORD=yes writes it", recorded)
		}
	}
	path := filepath.Join(t.TempDir(), file)
	check(t, os.WriteFile(path, []byte(all), 0o600))
	agent := exec.Command("go", "test", "-count", "1", "-run", test+"$", "./apiserver/workload")
	agent.Dir, agent.Env = "../..", append(os.Environ(), "HISTORIES="+path)
	if out, err := agent.CombinedOutput(); err != nil {
		t.Errorf("SEED=%d CASES=%d: %v\n%s", seed, count, err, out)
	}
}

// A cluster is an API server with a controller and a node. Its pods are numbered in the order of their
// creation.
type cluster struct {
	*rand.Rand
	t        *testing.T
	client   *fake.Clientset
	began    time.Time
	names    atomic.Int64
	numbers  map[string]int // by name
	versions atomic.Int64
	slow     bool // pods that are to end do so only at the event "ends"
	lines    strings.Builder
}

// startCluster starts the controllers that a function makes and returns as functions that run them.
func startCluster(t *testing.T, random *rand.Rand, controllers func(context.Context, *cluster, informers.SharedInformerFactory) []func()) *cluster {
	w := &cluster{Rand: random, t: t, client: fake.NewClientset(), began: time.Now(), numbers: map[string]int{}}
	w.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		pod := a.(clienttesting.CreateAction).GetObject().(*v1.Pod)
		pod.Name = fmt.Sprintf("pod-%d", w.names.Add(1))
		pod.UID = types.UID(pod.Name)
		return false, nil, nil
	})
	w.client.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		_, o, err := clienttesting.ObjectReaction(w.client.Tracker())(a)
		if err == nil {
			w.put(o.(*v1.Pod))
		}
		return true, o, err
	})
	w.client.PrependReactor("create", "replicasets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		set := a.(clienttesting.CreateAction).GetObject().(*appsv1.ReplicaSet)
		set.UID = types.UID(set.Name)
		return false, nil, nil
	})
	w.client.PrependReactor("update", "replicasets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		a.(clienttesting.UpdateAction).GetObject().(*appsv1.ReplicaSet).ResourceVersion = fmt.Sprint(w.versions.Add(1))
		return false, nil, nil
	})
	w.client.PrependReactor("delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		pod := w.pod(a.(clienttesting.DeleteAction).GetName())
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = new(metav1.Now()), new(int64(0))
		w.put(pod)
		return true, nil, nil
	})
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
	shared := informers.NewSharedInformerFactory(w.client, 0)
	run := controllers(ctx, w, shared)
	shared.Start(ctx.Done())
	shared.WaitForCacheSync(ctx.Done())
	var running sync.WaitGroup
	for _, f := range run {
		running.Go(f)
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
		shared.Shutdown()
	})
	return w
}

var podsResource = v1.SchemeGroupVersion.WithResource("pods")

func (w *cluster) put(pod *v1.Pod) {
	pod.ResourceVersion = fmt.Sprint(w.versions.Add(1)) // the controller ignores an update without another one
	check(w.t, w.client.Tracker().Update(podsResource, pod, pod.Namespace))
}

func (w *cluster) pod(name string) *v1.Pod {
	pod, err := w.client.Tracker().Get(podsResource, "default", name)
	check(w.t, err)
	return pod.(*v1.Pod).DeepCopy()
}

// pods returns all pods, by number. New ones get the next numbers, in the order of their indexes.
func (w *cluster) pods() []*v1.Pod {
	list, err := w.client.CoreV1().Pods("default").List(w.t.Context(), metav1.ListOptions{})
	check(w.t, err)
	var pods []*v1.Pod
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	number := func(p *v1.Pod) int {
		if n, ok := w.numbers[p.Name]; ok {
			return n
		}
		return 1000 + indexOf(p)
	}
	slices.SortFunc(pods, func(a, b *v1.Pod) int { return cmp.Or(number(a)-number(b), strings.Compare(a.Name, b.Name)) })
	for _, p := range pods {
		if _, ok := w.numbers[p.Name]; !ok { // the node sees it
			n := len(w.numbers)
			w.numbers[p.Name] = n
			at := metav1.Time{Time: time.Now().Add(time.Duration(n) * time.Millisecond)}
			p.CreationTimestamp, p.Spec.NodeName = at, nodeName
			p.Status = v1.PodStatus{Phase: v1.PodPending, StartTime: &at}
			w.put(p)
		}
	}
	return pods
}

func indexOf(p *v1.Pod) int {
	n, err := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation])
	if err != nil {
		return -1
	}
	return n
}

func (w *cluster) job() *batchv1.Job {
	j, err := w.client.BatchV1().Jobs("default").Get(w.t.Context(), "pi", metav1.GetOptions{})
	check(w.t, err)
	return j
}

func ended(p *v1.Pod) bool {
	return p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed
}

// pass lets time pass. The node sees new pods within a second, and pods that were told to end do so.
func (w *cluster) pass(seconds int, ends bool) {
	for range seconds {
		time.Sleep(time.Second)
		synctest.Wait()
		for _, p := range w.pods() {
			switch {
			case p.DeletionTimestamp == nil || w.slow && !ends:
			case !ended(p):
				stopped(p, v1.PodFailed)
				w.put(p)
			case len(p.Finalizers) == 0:
				check(w.t, w.client.Tracker().Delete(podsResource, p.Namespace, p.Name))
			}
		}
	}
}

// stopped ends the pod now.
func stopped(p *v1.Pod, phase v1.PodPhase) {
	p.Status.Phase = phase
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionFalse, LastTransitionTime: metav1.Now()}}
	if len(p.Status.ContainerStatuses) > 0 {
		p.Status.ContainerStatuses[0].State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{FinishedAt: metav1.Now()}}
	}
}

// history plays a Job to its end. It returns a line with the Job's spec and one for each event: what
// happened, after how many seconds the Job was looked at, and its state then.
func (w *cluster) history() string {
	j := w.random()
	w.slow = w.IntN(3) == 0
	spec := j.Spec.DeepCopy()
	spec.Selector, spec.Template.Labels = nil, nil
	slow := ""
	if w.slow {
		slow = "slow "
	}
	fmt.Fprintf(&w.lines, "%s%s\n", slow, text(spec))
	_, err := w.client.BatchV1().Jobs("default").Create(w.t.Context(), j, metav1.CreateOptions{})
	check(w.t, err)
	w.after("begins", 5)
	over := 0
	for range 40 {
		for _, c := range w.job().Status.Conditions {
			if c.Status == v1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
				over++
			}
		}
		if over > 2 {
			break
		}
		w.after(w.event(), pick(w.Rand, 4, 5, 7, 9, 12, 21, 39, 90, 400))
	}
	return w.lines.String()
}

// after adds the line of an event, with the Job's state some seconds later.
func (w *cluster) after(event string, seconds int) {
	w.pass(seconds, event == "ends")
	s := w.job().Status
	var words []string
	for _, p := range w.pods() {
		if word := fmt.Sprint(w.numbers[p.Name]); p.DeletionTimestamp == nil && !ended(p) {
			if i := indexOf(p); i >= 0 {
				word += fmt.Sprintf("@%d", i)
			}
			words = append(words, word)
		}
	}
	fmt.Fprintf(&w.lines, "%s +%d: pods %s; active %d ready %d succeeded %d failed %d", event, seconds, strings.Join(words, " "), s.Active, *s.Ready, s.Succeeded, s.Failed)
	if s.CompletedIndexes != "" {
		fmt.Fprintf(&w.lines, " completed %s", s.CompletedIndexes)
	}
	if *s.Terminating > 0 {
		fmt.Fprintf(&w.lines, " terminating %d", *s.Terminating)
	}
	if s.StartTime != nil {
		fmt.Fprintf(&w.lines, " since %.0f", s.StartTime.Sub(w.began).Seconds())
	}
	if s.CompletionTime != nil {
		fmt.Fprintf(&w.lines, " completed")
	}
	for _, c := range s.Conditions {
		if c.Status == v1.ConditionTrue {
			fmt.Fprintf(&w.lines, "; %s %s (%s)", c.Type, c.Reason, c.Message)
		}
	}
	w.lines.WriteString("\n")
}

// random makes the Job, as an API server would complete it.
func (w *cluster) random() *batchv1.Job {
	labels := map[string]string{batchv1.ControllerUidLabel: "1"}
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "pi", Namespace: "default", UID: "1", Generation: 1, CreationTimestamp: metav1.Now()}}
	j.Spec = batchv1.JobSpec{
		Parallelism: new(int32(1 + w.IntN(3))), BackoffLimit: new(int32(w.IntN(6))), CompletionMode: new(pick(w.Rand, batchv1.NonIndexedCompletion, batchv1.IndexedCompletion)),
		Selector: &metav1.LabelSelector{MatchLabels: labels}, Suspend: new(w.IntN(10) == 0),
		Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: v1.PodSpec{RestartPolicy: pick(w.Rand, v1.RestartPolicyNever, v1.RestartPolicyOnFailure), Containers: []v1.Container{{Name: "c", Image: "i"}}}},
	}
	if *j.Spec.CompletionMode == batchv1.IndexedCompletion || w.IntN(3) > 0 {
		j.Spec.Completions = new(int32(w.IntN(6)))
	}
	if w.IntN(3) == 0 {
		j.Spec.ActiveDeadlineSeconds = new(int64(30 + w.IntN(600)))
	}
	return j
}

// event makes something happen, and returns what.
func (w *cluster) event() string {
	if w.IntN(6) == 0 || *w.job().Spec.Suspend && w.IntN(2) == 0 {
		return w.edit()
	}
	var live, ending []*v1.Pod
	for _, p := range w.pods() {
		switch {
		case ended(p):
		case p.DeletionTimestamp != nil:
			ending = append(ending, p)
		default:
			live = append(live, p)
		}
	}
	if len(ending) > 0 && w.IntN(3) == 0 {
		return "ends"
	}
	if len(live) == 0 {
		return "time passes"
	}
	p := live[w.IntN(len(live))]
	number := w.numbers[p.Name]
	running := len(p.Status.ContainerStatuses) > 0
	defer w.put(p)
	switch event := pick(w.Rand, "runs", "runs", "succeeds", "fails", "restarts", "is rejected"); {
	case event == "succeeds" && running:
		stopped(p, v1.PodSucceeded)
		return fmt.Sprint(number, " succeeds")
	case event == "fails" && running:
		stopped(p, v1.PodFailed)
		return fmt.Sprint(number, " fails")
	case event == "restarts" && running && p.Spec.RestartPolicy == v1.RestartPolicyOnFailure:
		p.Status.ContainerStatuses[0].RestartCount++
		return fmt.Sprint(number, " restarts")
	case event == "is rejected" && !running:
		stopped(p, v1.PodFailed)
		return fmt.Sprint(number, " is rejected")
	case !running:
		p.Status.Phase = v1.PodRunning
		p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "c", State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.Now()}}}}
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		return fmt.Sprint(number, " runs")
	}
	return "time passes"
}

// edit changes the Job, and returns how.
func (w *cluster) edit() (event string) {
	j := w.job()
	switch spec := &j.Spec; {
	case *spec.Suspend:
		spec.Suspend, event = new(false), "resumed"
	case w.IntN(3) == 0:
		spec.Suspend, event = new(true), "suspended"
	case *spec.CompletionMode == batchv1.IndexedCompletion && w.IntN(2) == 0:
		n := int32(1 + w.IntN(5)) // an API server has both the same
		spec.Completions, spec.Parallelism, event = &n, &n, fmt.Sprint("completions ", n)
	default:
		spec.Parallelism = new(int32(w.IntN(4)))
		event = fmt.Sprint("parallelism ", *spec.Parallelism)
	}
	j.Generation++
	_, err := w.client.BatchV1().Jobs("default").Update(w.t.Context(), j, metav1.UpdateOptions{})
	check(w.t, err)
	return event
}
