package workload_test

import (
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// A Job selects its own pods and no others: "kubectl exec job/NAME" and "kubectl logs job/NAME" act
// on one of those that it selects, and an empty selector would select all pods.
func TestJobSelectsItsPods(t *testing.T) {
	for _, mode := range []string{"", "  completionMode: Indexed"} {
		w := &world{t: t, now: time.Unix(1e9, 0), object: read(t, fmt.Sprintf(sum, mode))}
		w.step()
		job := w.plan.Status.(*batchv1.Job)
		selector, err := metav1.LabelSelectorAsSelector(job.Spec.Selector)
		if err != nil || selector.Empty() || selector.Matches(labels.Set{"app": "other"}) {
			t.Fatalf("it selects by %q, %v", selector, err)
		}
		if len(w.plan.Pods) == 0 {
			t.Error("it has no pods")
		}
		for _, pod := range w.plan.Pods {
			if !selector.Matches(labels.Set(pod.Labels)) {
				t.Errorf("it does not select its pod with the labels %v", pod.Labels)
			}
		}
	}
}
