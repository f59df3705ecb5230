package kubelet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/controller/deployment"
	"k8s.io/kubernetes/pkg/controller/replicaset"
	"k8s.io/kubernetes/pkg/features"
)

// The agent updates and scales random Deployments as Kubernetes' controllers do: TestSameJobs has how
// that is compared.
func TestSameRollouts(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.StaleControllerConsistencyReplicaSet, false)
	sameHistories(t, "rollouts.txt", "TestRolloutAsKubernetes", 20, func(t *testing.T, random *rand.Rand) string {
		w := startCluster(t, random, func(ctx context.Context, w *cluster, shared informers.SharedInformerFactory) []func() {
			apps, pods := shared.Apps().V1(), shared.Core().V1().Pods()
			d, err := deployment.NewDeploymentController(ctx, apps.Deployments(), apps.ReplicaSets(), pods, w.client)
			check(t, err)
			r := replicaset.NewReplicaSetController(ctx, apps.ReplicaSets(), pods, w.client, replicaset.BurstReplicas)
			return []func(){func() { d.Run(ctx, 1) }, func() { r.Run(ctx, 1) }}
		})
		return w.rollouts()
	})
}

// rollouts plays a Deployment, and returns a line with its spec and one for each event, with the state
// of the Deployment some seconds later.
func (w *cluster) rollouts() string {
	d := w.deployment()
	spec := d.Spec.DeepCopy()
	spec.Selector, spec.Template.Labels = nil, nil
	fmt.Fprintln(&w.lines, text(spec))
	_, err := w.client.AppsV1().Deployments("default").Create(w.t.Context(), d, metav1.CreateOptions{})
	check(w.t, err)
	w.rolled("begins", 5)
	for range 30 {
		w.rolled(w.change(), pick(w.Rand, 6, 8, 15))
	}
	return w.lines.String()
}

func (w *cluster) deployment() *appsv1.Deployment {
	labels := map[string]string{"app": "web"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "1", Generation: 1}}
	d.Spec = appsv1.DeploymentSpec{
		Replicas: new(int32(w.IntN(6))), MinReadySeconds: int32(pick(w.Rand, 0, 0, 10)), Selector: &metav1.LabelSelector{MatchLabels: labels}, RevisionHistoryLimit: new(int32(10)),
		Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i:1"}}}},
		Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
	}
	if w.IntN(6) > 0 {
		most := func() *intstr.IntOrString {
			if w.IntN(2) == 0 {
				return new(intstr.FromInt(w.IntN(4)))
			}
			return new(intstr.FromString(fmt.Sprintf("%d%%", w.IntN(101))))
		}
		d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: most(), MaxUnavailable: most()}}
		if u := d.Spec.Strategy.RollingUpdate; strings.TrimSuffix(u.MaxSurge.String(), "%") == "0" && strings.TrimSuffix(u.MaxUnavailable.String(), "%") == "0" {
			u.MaxSurge = new(intstr.FromInt(1))
		}
	}
	return d
}

func (w *cluster) web() *appsv1.Deployment {
	d, err := w.client.AppsV1().Deployments("default").Get(w.t.Context(), "web", metav1.GetOptions{})
	check(w.t, err)
	return d
}

// kindOf is "new" or "old", by whether the pod has the present template.
func kindOf(p *v1.Pod, d *appsv1.Deployment) string {
	if p.Spec.Containers[0].Image == d.Spec.Template.Spec.Containers[0].Image {
		return "new"
	}
	return "old"
}

func isReady(p *v1.Pod) bool {
	return len(p.Status.Conditions) > 0 && p.Status.Conditions[0].Status == v1.ConditionTrue
}

// change makes something happen to the Deployment or to a pod, and returns what.
func (w *cluster) change() string {
	d := w.web()
	count := map[string]int{}
	var live []*v1.Pod
	for _, p := range w.pods() {
		if p.DeletionTimestamp == nil {
			count[kindOf(p, d)]++
			live = append(live, p)
		}
	}
	if n := w.IntN(10); n < 2 {
		event := ""
		switch {
		case d.Spec.Paused:
			d.Spec.Paused, event = false, "resumed"
		case n == 0 && w.IntN(4) == 0:
			d.Spec.Paused, event = true, "paused"
		case n == 0 && count["old"] == 0: // during an update the agent scales the new pods alone (docs/agent.md)
			d.Spec.Replicas = new(int32(w.IntN(7)))
			event = fmt.Sprint("replicas ", *d.Spec.Replicas)
		default:
			image := strconv.Itoa(1 + w.IntN(4))
			d.Spec.Template.Spec.Containers[0].Image, event = "i:"+image, "image "+image
		}
		d.Generation++
		_, err := w.client.AppsV1().Deployments("default").Update(w.t.Context(), d, metav1.UpdateOptions{})
		check(w.t, err)
		return event
	}
	if len(live) == 0 {
		return "time passes"
	}
	p := live[w.IntN(len(live))]
	ready, event := v1.ConditionTrue, "ready"
	if isReady(p) {
		if w.IntN(4) > 0 {
			return "time passes"
		}
		ready, event = v1.ConditionFalse, "unready"
		for _, other := range live { // of its kind, the one that has been ready for the longest time
			if kindOf(other, d) == kindOf(p, d) && isReady(other) && other.Status.Conditions[0].LastTransitionTime.Before(&p.Status.Conditions[0].LastTransitionTime) {
				p = other
			}
		}
	}
	p.Status.Phase = v1.PodRunning
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: ready, LastTransitionTime: metav1.Now()}}
	w.put(p)
	return event + " " + kindOf(p, d)
}

// rolled adds the line of an event, with the state of the Deployment some seconds later.
func (w *cluster) rolled(event string, seconds int) {
	w.pass(seconds, true)
	d := w.web()
	all, ready := map[string]int{}, map[string]int{}
	for _, p := range w.pods() {
		if p.DeletionTimestamp == nil {
			all[kindOf(p, d)]++
			if isReady(p) {
				ready[kindOf(p, d)]++
			}
		}
	}
	s := d.Status
	fmt.Fprintf(&w.lines, "%s +%d: new %d/%d old %d/%d; replicas %d updated %d ready %d available %d unavailable %d", event, seconds,
		ready["new"], all["new"], ready["old"], all["old"], s.Replicas, s.UpdatedReplicas, s.ReadyReplicas, s.AvailableReplicas, s.UnavailableReplicas)
	for _, c := range s.Conditions {
		if c.Type == appsv1.DeploymentAvailable {
			fmt.Fprintf(&w.lines, "; %s %s", c.Type, c.Status)
		}
	}
	w.lines.WriteString("\n")
}
