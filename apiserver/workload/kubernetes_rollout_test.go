package workload_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/crisp-cri/crisp/agent/source"
)

// After the same events, a Deployment has as many pods of each template, and the status, as with
// Kubernetes' controllers. TestSameRollouts of test/kubelet recorded these, in the file that HISTORIES
// names or in testdata.
func TestRolloutAsKubernetes(t *testing.T) {
	compareHistories(t, "rollouts.txt", 550, func(history string) (steps int, diff string) {
		r := rolloutReplay{world: world{t: t, now: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)}, used: map[string]bool{"i:1": true}}
		return r.play(history)
	})
}

// A rolloutReplay is a Deployment with the events of a recorded history.
type rolloutReplay struct {
	world
	spec    appsv1.DeploymentSpec
	used    map[string]bool // images
	several bool            // there were pods of several former templates at once
}

// play returns how many steps were the same, and the history up to the first difference, "" if there
// is none.
func (r *rolloutReplay) play(history string) (same int, diff string) {
	lines := strings.Split(strings.TrimSuffix(history, "\n"), "\n")
	if err := json.Unmarshal([]byte(lines[0]), &r.spec); err != nil {
		r.t.Fatal(err)
	}
	r.spec.Template.Labels = map[string]string{"app": "web"}
	r.spec.Selector = &metav1.LabelSelector{MatchLabels: r.spec.Template.Labels}
	for i, line := range lines[1:] {
		event, _, _ := strings.Cut(line, " +")
		var seconds int
		if _, err := fmt.Sscanf(line[len(event):], " +%d:", &seconds); err != nil {
			r.t.Fatal(line, err)
		}
		if r.returns(event) {
			return i, "" // which old pods are left: the agent ends those with low numbers first, Kubernetes those of the oldest template
		}
		r.happens(event)
		r.look()
		for range seconds {
			r.now = r.now.Add(time.Second)
			if again := r.plan.Again; !again.IsZero() && !again.After(r.now) {
				r.look()
			}
		}
		if got := fmt.Sprintf("%s +%d: %s", event, seconds, r.state()); got != line {
			return i, fmt.Sprintf("%s\nhere:\n%s", strings.Join(lines[:i+2], "\n"), got)
		}
	}
	return len(lines) - 1, ""
}

// returns reports whether an event makes a former template the present one again after several former
// ones were replaced at once.
func (r *rolloutReplay) returns(event string) bool {
	old := map[string]bool{}
	for _, p := range r.pods {
		if image := p.Spec.Containers[0].Image; r.kindOf(p) == "old" {
			old[image] = true
		}
	}
	r.several = r.several || len(old) > 1
	image, ok := strings.CutPrefix(event, "image ")
	was := r.used["i:"+image]
	r.used["i:"+image] = true
	return ok && was && r.several
}

// look plans until nothing more comes of it.
func (r *rolloutReplay) look() {
	for range 3 {
		r.step()
	}
}

// happens makes the event of a line of the history happen.
func (r *rolloutReplay) happens(event string) {
	what, value, _ := strings.Cut(event, " ")
	switch what {
	case "begins":
	case "paused", "resumed":
		r.spec.Paused = what == "paused"
	case "image":
		r.spec.Template.Spec.Containers[0].Image = "i:" + value
	case "replicas":
		r.spec.Replicas = new(int32)
		fmt.Sscan(value, r.spec.Replicas)
	case "ready", "unready":
		r.turns(what == "unready", value)
		return
	default:
		return
	}
	data, err := json.Marshal(r.spec)
	if err != nil {
		r.t.Fatal(err)
	}
	r.object = read(r.t, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":`+string(data)+"}")
}

// turns makes a pod ready or, of those that are, the one unready that has been so for the longest time.
func (r *rolloutReplay) turns(was bool, kind string) {
	var turning *source.WorkloadPod
	for i := range r.pods {
		p := &r.pods[i]
		if r.kindOf(*p) == kind && isReady(*p) == was && (turning == nil || was && p.Status.Conditions[0].LastTransitionTime.Before(&turning.Status.Conditions[0].LastTransitionTime)) {
			turning = p
		}
	}
	if turning == nil {
		r.t.Fatalf("no pod of the %s template", kind)
	}
	is := v1.ConditionTrue
	if was {
		is = v1.ConditionFalse
	}
	turning.Status = v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: is, LastTransitionTime: metav1.Time{Time: r.now}}}}
}

func (r *rolloutReplay) kindOf(p source.WorkloadPod) string {
	if p.Spec.Containers[0].Image == r.spec.Template.Spec.Containers[0].Image {
		return "new"
	}
	return "old"
}

func isReady(p source.WorkloadPod) bool {
	return len(p.Status.Conditions) > 0 && p.Status.Conditions[0].Status == v1.ConditionTrue
}

// state describes the Deployment as a history does.
func (r *rolloutReplay) state() string {
	all, ready := map[string]int{}, map[string]int{}
	for _, p := range r.pods {
		all[r.kindOf(p)]++
		if isReady(p) {
			ready[r.kindOf(p)]++
		}
	}
	s := r.plan.Status.(*appsv1.Deployment).Status
	text := fmt.Sprintf("new %d/%d old %d/%d; replicas %d updated %d ready %d available %d unavailable %d",
		ready["new"], all["new"], ready["old"], all["old"], s.Replicas, s.UpdatedReplicas, s.ReadyReplicas, s.AvailableReplicas, s.UnavailableReplicas)
	for _, c := range s.Conditions {
		if c.Type == appsv1.DeploymentAvailable {
			text += fmt.Sprintf("; %s %s", c.Type, c.Status)
		}
	}
	return text
}
