package workload

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// A percentage is rounded up for maxSurge and down for maxUnavailable; the two are never both 0.
func TestFenceposts(t *testing.T) {
	for _, test := range []struct {
		replicas                   int32
		maxSurge, maxUnavailable   string // "" is the default
		wantSurge, wantUnavailable int
	}{
		{1, "", "", 1, 0}, {3, "", "", 1, 0}, {4, "", "", 1, 1}, {10, "", "", 3, 2}, {0, "", "", 0, 0},
		{10, "30%", "30%", 3, 3}, {9, "34%", "34%", 4, 3}, {3, "0", "25%", 0, 1}, {1, "0%", "0%", 0, 1}, {5, "0", "100%", 0, 5},
		{2, "3", "0", 3, 0}, {2, "0", "3", 0, 2}, {2, "200%", "1", 4, 1}, {0, "0", "0%", 0, 0},
	} {
		limit := func(text string) *intstr.IntOrString {
			if text == "" {
				return nil
			}
			l := intstr.Parse(text)
			return &l
		}
		d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &test.replicas, Strategy: appsv1.DeploymentStrategy{
			Type:          appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: limit(test.maxSurge), MaxUnavailable: limit(test.maxUnavailable)},
		}}}
		if surge, unavailable := fenceposts(d); surge != test.wantSurge || unavailable != test.wantUnavailable {
			t.Errorf("%d pods, %q and %q: %d more and %d less, want %d and %d", test.replicas, test.maxSurge, test.maxUnavailable, surge, unavailable, test.wantSurge, test.wantUnavailable)
		}
	}
}
