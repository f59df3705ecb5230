package workload_test

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/crisp-cri/crisp/agent/manifest"
)

// pause pauses the Deployment of a world.
func (w *world) pause(is bool) { w.object.(*appsv1.Deployment).Spec.Paused = is }

// A paused Deployment keeps its pods when its template changes. It is scaled, and ended pods are
// replaced, with the old template. Once resumed, the update continues.
func TestDeploymentPaused(t *testing.T) {
	for _, strategy := range []string{"1+0", "Recreate"} {
		w := &world{t: t, now: time.Unix(1e9, 0), object: deployment(t, 2, 0, strategy, 1)}
		w.expect("at first", "front-0:1 front-1:1")
		w.ready("front-0", "front-1")
		old := w.pods[0].Labels["pod-template-hash"]

		w.object = deployment(t, 2, 0, strategy, 2)
		w.pause(true)
		w.expect("a change while it is paused", "front-0:1 front-1:1")
		w.status("Replicas:2 UpdatedReplicas:0 ReadyReplicas:2 AvailableReplicas:2 UnavailableReplicas:0")
		c := w.plan.Status.(*appsv1.Deployment).Status.Conditions
		if last := c[len(c)-1]; last.Type != appsv1.DeploymentProgressing || last.Status != v1.ConditionUnknown || last.Reason != "DeploymentPaused" {
			t.Errorf("conditions are %+v", c)
		}
		w.object = deployment(t, 3, 0, strategy, 2)
		w.pause(true)
		w.expect("scaled up", "front-0:1 front-1:1 front-2:1")
		if p := w.pods[2]; p.Labels["pod-template-hash"] != old || p.UID == w.pods[0].UID || p.Annotations[manifest.AnnotationWorkload] != "deployment default/front" {
			t.Errorf("%s has the labels %v and annotations %v", p.Name, p.Labels, p.Annotations)
		}
		w.expect("nothing new", "front-0:1 front-1:1 front-2:1")
		w.end("front-1", v1.PodFailed)
		w.now = w.now.Add(time.Minute)
		w.expect("one has ended", "front-0:1 front-2:1 front-3:1")
		w.object = deployment(t, 1, 0, strategy, 2)
		w.pause(true)
		w.ready("front-0")
		w.expect("scaled down", "front-0:1")
		w.end("front-0", v1.PodFailed)
		w.now = w.now.Add(time.Minute)
		w.expect("the last one has ended", "front-1:1")

		w.pause(false)
		w.ready("front-1")
		if got := w.step(); !strings.Contains(got, ":2") {
			t.Errorf("resumed it has %s", got)
		}
	}
}

// An update that is paused half way keeps the pods of both templates, with its surge.
func TestDeploymentPausedMidway(t *testing.T) {
	w := &world{t: t, now: time.Unix(1e9, 0), object: deployment(t, 3, 0, "1+0", 1)}
	w.step()
	w.ready("front-0", "front-1", "front-2")
	w.object = deployment(t, 3, 0, "1+0", 2)
	w.expect("one more", "front-0:1 front-1:1 front-2:1 front-3:2")
	w.pause(true)
	w.ready("front-3")
	w.expect("paused", "front-0:1 front-1:1 front-2:1 front-3:2")
	w.pause(false)
	if got := w.step(); strings.Count(got, ":2") != 2 {
		t.Errorf("resumed it has %s", got)
	}
	w.pause(true)
	w.object = deployment(t, 0, 0, "1+0", 2)
	w.pause(true)
	w.step()
	w.object = deployment(t, 0, 0, "0+1", 2)
	w.pause(true)
	w.expect("nothing is wanted", "")
	w.object = deployment(t, 1, 0, "0+1", 3)
	w.pause(true)
	w.expect("no pod tells of another template", "front-0:3")
}
