package workload_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/apiserver/workload"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A world is a workload and its pods, which follow each plan at once.
type world struct {
	t      *testing.T
	object manifest.Object
	pods   []source.WorkloadPod
	now    time.Time
	plan   source.Plan
}

func read(t *testing.T, text string) manifest.Object {
	t.Helper()
	objects, _, err := manifest.Read("f", []byte(text), manifest.Options{NodeName: "n1", Source: manifest.SourceAPI})
	if err != nil {
		t.Fatal(err)
	}
	return objects[0]
}

// step plans, replaces the pods by the wanted ones, and returns these: "front-0:2" is front-0 with
// image 2.
func (w *world) step() string {
	w.t.Helper()
	w.plan = workload.Expand(w.object, w.pods, w.now)
	was := map[types.UID]v1.PodStatus{}
	for _, p := range w.pods {
		was[p.UID] = p.Status
	}
	w.pods = nil
	var words []string
	for _, p := range w.plan.Pods {
		w.pods = append(w.pods, source.WorkloadPod{Pod: p, Status: was[p.UID]})
		_, tag, _ := strings.Cut(p.Spec.Containers[0].Image, ":")
		words = append(words, p.Name+":"+tag)
	}
	return strings.Join(words, " ")
}

func (w *world) expect(what, want string) {
	w.t.Helper()
	if got := w.step(); got != want {
		w.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// ready makes pods ready now.
func (w *world) ready(names ...string) {
	for i, p := range w.pods {
		for _, name := range names {
			if p.Name == name {
				w.pods[i].Status = v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.Time{Time: w.now}}}}
			}
		}
	}
}

// counts compares the number of pods of each image after a step.
func (w *world) counts(what string, want map[string]int) {
	w.t.Helper()
	got := map[string]int{}
	for _, pod := range strings.Fields(w.step()) {
		_, tag, _ := strings.Cut(pod, ":")
		got[tag]++
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("%s: %s", what, diff)
	}
}

// status compares the counts in the Deployment's status.
func (w *world) status(want string) {
	w.t.Helper()
	s := w.plan.Status.(*appsv1.Deployment).Status
	got := fmt.Sprintf("Replicas:%d UpdatedReplicas:%d ReadyReplicas:%d AvailableReplicas:%d UnavailableReplicas:%d", s.Replicas, s.UpdatedReplicas, s.ReadyReplicas, s.AvailableReplicas, s.UnavailableReplicas)
	if got != want {
		w.t.Errorf("status %s, want %s", got, want)
	}
}

// end ends a pod now.
func (w *world) end(name string, phase v1.PodPhase) {
	for i, p := range w.pods {
		if p.Name == name {
			began := p.Status.StartTime
			if began == nil {
				began = &metav1.Time{Time: w.now}
			}
			w.pods[i].Status = v1.PodStatus{Phase: phase, StartTime: began, ContainerStatuses: []v1.ContainerStatus{
				{State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{FinishedAt: metav1.Time{Time: w.now}}}}}}
		}
	}
}

const front = `apiVersion: apps/v1
kind: Deployment
metadata: {name: front}
spec:
  replicas: %d
  minReadySeconds: %d
  strategy: %s
  selector: {matchLabels: {app: f}}
  template:
    metadata: {labels: {app: f}}
    spec: {containers: [{name: a, image: "i:%d"}]}
`

// deployment returns a Deployment; "2+1" is maxSurge 2 and maxUnavailable 1.
func deployment(t *testing.T, replicas, minReady int, strategy string, image int) manifest.Object {
	switch surge, unavailable, ok := strings.Cut(strategy, "+"); {
	case ok:
		strategy = "{rollingUpdate: {maxSurge: " + surge + ", maxUnavailable: " + unavailable + "}}"
	case strategy == "":
		strategy = "{}"
	default:
		strategy = "{type: " + strategy + "}"
	}
	return read(t, fmt.Sprintf(front, replicas, minReady, strategy, image))
}

// An update replaces as many pods as may be unavailable, and continues when the new ones are
// available.
func TestDeployment(t *testing.T) {
	w := &world{t: t, now: time.Unix(1e9, 0), object: deployment(t, 4, 10, "0+2", 1)}
	w.expect("at first", "front-0:1 front-1:1 front-2:1 front-3:1")
	w.ready("front-0", "front-1", "front-2", "front-3")
	w.now = w.now.Add(time.Minute)
	w.expect("nothing new", "front-0:1 front-1:1 front-2:1 front-3:1")

	w.object = deployment(t, 4, 10, "0+2", 2)
	w.expect("an update", "front-0:2 front-1:2 front-2:1 front-3:1")
	w.expect("waits", "front-0:2 front-1:2 front-2:1 front-3:1")
	w.ready("front-0")
	w.expect("for ten seconds of readiness", "front-0:2 front-1:2 front-2:1 front-3:1")
	if want := w.now.Add(10 * time.Second); !w.plan.Again.Equal(want) {
		t.Errorf("looks again at %v, want %v", w.plan.Again, want)
	}
	w.now = w.now.Add(10 * time.Second)
	w.expect("goes on", "front-0:2 front-1:2 front-2:2 front-3:1")
	w.ready("front-1", "front-2")
	w.now = w.now.Add(10 * time.Second)
	w.expect("to the end", "front-0:2 front-1:2 front-2:2 front-3:2")

	w.object = deployment(t, 2, 10, "0+2", 2)
	w.expect("fewer", "front-0:2 front-1:2")
	w.object = deployment(t, 3, 10, "0+2", 2)
	w.expect("more", "front-0:2 front-1:2 front-2:2")
	uids := map[types.UID]bool{}
	for _, p := range w.pods {
		uids[p.UID] = true
		if p.Labels["app"] != "f" || p.Labels["pod-template-hash"] == "" || p.Annotations[manifest.AnnotationWorkload] != "deployment default/front" {
			t.Errorf("%s has the labels %v", p.Name, p.Labels)
		}
	}
	if len(uids) != 3 {
		t.Error("pods share their UIDs")
	}
}

// An update stops if its pods do not become available. After a fix the broken pods are replaced
// first.
func TestDeploymentStuck(t *testing.T) {
	w := &world{t: t, now: time.Unix(1e9, 0), object: deployment(t, 3, 0, "0+1", 1)}
	w.step()
	w.ready("front-0", "front-1", "front-2")
	w.object = deployment(t, 3, 0, "0+1", 2)
	w.expect("a broken image", "front-0:2 front-1:1 front-2:1")
	for range 3 {
		w.expect("goes no further", "front-0:2 front-1:1 front-2:1")
	}
	w.object = deployment(t, 3, 0, "0+1", 3)
	w.expect("repaired", "front-0:3 front-1:1 front-2:1")
	w.ready("front-0")
	w.expect("goes on", "front-0:3 front-1:3 front-2:1")
}

// A pod that has ended, because it was evicted or rejected, is replaced after ten seconds under
// another name.
func TestDeploymentPodEnds(t *testing.T) {
	w := &world{t: t, now: time.Unix(1e9, 0), object: deployment(t, 2, 0, "0+1", 1)}
	w.expect("at first", "front-0:1 front-1:1")
	w.ready("front-0", "front-1")
	ended := w.now
	w.end("front-0", v1.PodFailed)
	w.now = w.now.Add(9 * time.Second)
	w.expect("it stays for a while", "front-0:1 front-1:1")
	w.status("Replicas:2 UpdatedReplicas:2 ReadyReplicas:1 AvailableReplicas:1 UnavailableReplicas:1")
	if want := ended.Add(10 * time.Second); !w.plan.Again.Equal(want) {
		t.Errorf("to be looked at again at %v, want %v", w.plan.Again, want)
	}
	w.now = w.now.Add(time.Second)
	w.expect("and is replaced", "front-1:1 front-2:1")
	w.expect("once", "front-1:1 front-2:1")
	// A rejected pod has neither containers nor conditions.
	w.pods[1].Status = v1.PodStatus{Phase: v1.PodFailed, Reason: "OutOfcpu", StartTime: &metav1.Time{Time: w.now}}
	w.expect("its successor does not fit", "front-1:1 front-2:1")
	w.now = w.now.Add(10 * time.Second)
	w.expect("and is replaced too", "front-0:1 front-1:1")
	w.ready("front-0", "front-1")
	// An update continues after a pod has failed.
	w.object = deployment(t, 2, 0, "0+1", 2)
	w.expect("update", "front-0:2 front-1:1")
	w.end("front-0", v1.PodFailed)
	w.expect("the new one fails", "front-0:2 front-1:1")
	w.now = w.now.Add(10 * time.Second)
	w.expect("and is replaced", "front-1:1 front-2:2")
	w.ready("front-2")
	w.expect("and the update goes on", "front-0:2 front-2:2")
}

// A clock that was set back blocks neither an update nor the retry of a Job.
func TestClockSetBack(t *testing.T) {
	w := &world{t: t, now: time.Unix(1e9, 0), object: deployment(t, 2, 10, "0+1", 1)}
	w.step()
	w.ready("front-0", "front-1")
	w.now = w.now.Add(-time.Hour)
	w.object = deployment(t, 2, 10, "0+1", 2)
	w.expect("an update", "front-0:2 front-1:1")
	w.now = w.now.Add(time.Hour)
	w.end("front-0", v1.PodFailed)
	w.now = w.now.Add(-time.Hour)
	w.expect("a pod that has ended is replaced", "front-1:1 front-2:2")

	w = &world{t: t, now: time.Unix(1e9, 0), object: read(t, fmt.Sprintf(sum, ""))}
	w.step()
	w.end("sum-0", v1.PodFailed)
	w.now = w.now.Add(-time.Hour)
	w.expect("a Job tries again", "sum-0:1 sum-1:1 sum-2:1")
}

// An ended pod of a DaemonSet is replaced as well.
func TestDaemonSetPodEnds(t *testing.T) {
	text := strings.NewReplacer("Deployment", "DaemonSet", "  replicas: %d\n  minReadySeconds: %d\n  strategy: %s\n", "").Replace(front)
	w := &world{t: t, now: time.Unix(1e9, 0), object: read(t, fmt.Sprintf(text, 1))}
	w.expect("at first", "front-0:1")
	w.end("front-0", v1.PodFailed)
	w.now = w.now.Add(10 * time.Second)
	w.expect("replaced", "front-1:1")
	w.end("front-1", v1.PodFailed)
	w.now = w.now.Add(10 * time.Second)
	w.expect("replaced again", "front-0:1")
}

// With a surge the new pod starts first. That is the default for few pods, since 25 % of them is
// rounded to a surge of one and no unavailable pod.
func TestDeploymentSurge(t *testing.T) {
	w := &world{t: t, now: time.Unix(1e9, 0), object: deployment(t, 1, 0, "", 1)}
	w.expect("at first", "front-0:1")
	w.ready("front-0")
	w.object = deployment(t, 1, 0, "", 2)
	w.expect("an update", "front-0:1 front-1:2")
	w.expect("waits", "front-0:1 front-1:2")
	w.status("Replicas:2 UpdatedReplicas:1 ReadyReplicas:1 AvailableReplicas:1 UnavailableReplicas:1")
	w.ready("front-1")
	w.expect("and then the old one goes", "front-1:2")
	w.object = deployment(t, 1, 0, "", 3)
	w.expect("the next takes the name that is free", "front-0:3 front-1:2")
	w.object = deployment(t, 0, 0, "", 3)
	w.expect("none is wanted", "")

	w = &world{t: t, now: time.Unix(1e9, 0), object: deployment(t, 3, 0, "1+0", 1)}
	w.step()
	w.ready("front-0", "front-1", "front-2")
	w.object = deployment(t, 3, 0, "1+0", 2)
	for _, want := range []string{
		"front-0:1 front-1:1 front-2:1 front-3:2", "front-0:2 front-1:1 front-2:1 front-3:2", "front-0:2 front-1:2 front-2:1 front-3:2", "front-0:2 front-1:2 front-3:2",
	} {
		w.expect("one after the other", want)
		for _, p := range w.pods {
			w.ready(p.Name)
		}
	}
	w.expect("the end", "front-0:2 front-1:2 front-3:2")
}

// The example from the source of the Deployment controller: ten pods, maxUnavailable 2 and maxSurge
// 3.
func TestDeploymentOfTen(t *testing.T) {
	begin := func() *world {
		w := &world{t: t, now: time.Unix(1e9, 0), object: deployment(t, 10, 0, "3+2", 1)}
		w.step()
		for _, p := range w.pods {
			w.ready(p.Name)
		}
		w.object = deployment(t, 10, 0, "3+2", 2)
		w.counts("an update", map[string]int{"1": 8, "2": 5})
		w.counts("waits for what crashes", map[string]int{"1": 8, "2": 5})
		return w
	}
	w := begin()
	for i, p := range w.pods {
		if p.Spec.Containers[0].Image == "i:1" {
			w.pods[i].Status = v1.PodStatus{}
			break
		}
	}
	w.counts("an old pod fails, and none goes for it", map[string]int{"1": 8, "2": 5})
	w.object = deployment(t, 10, 0, "3+2", 1)
	w.counts("rolled back", map[string]int{"1": 10, "2": 1})

	w = begin()
	w.object = deployment(t, 10, 0, "3+2", 3)
	w.counts("rolled over", map[string]int{"1": 8, "3": 5})
}

// Recreate drops all old pods, and each new pod waits for the end of the old one with its name.
func TestDeploymentRecreate(t *testing.T) {
	w := &world{t: t, now: time.Unix(1e9, 0), object: deployment(t, 2, 0, "1+0", 1)}
	w.step()
	w.ready("front-0", "front-1")
	w.object = deployment(t, 2, 0, "1+0", 2)
	w.step()
	w.ready("front-2")
	w.expect("names with a gap", "front-0:2 front-1:1 front-2:2")
	w.ready("front-0")
	w.expect("names with a gap", "front-0:2 front-2:2")
	w.object = deployment(t, 2, 0, "Recreate", 3)
	w.expect("recreated", "front-0:3 front-2:3")
	w.object = deployment(t, 3, 0, "Recreate", 4)
	w.expect("and one more", "front-0:4 front-1:4 front-2:4")
}
