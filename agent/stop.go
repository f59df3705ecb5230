package agent

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/worker"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// stopPods stops all pods that are wanted, those of the lowest priority first,
// and returns when none runs. They are not deleted: the next agent starts them
// again.
func (a *agent) stopPods(ctx context.Context) {
	by := map[int32][]*v1.Pod{}
	for _, pod := range a.wanted.Pods() {
		priority := int32(0)
		if pod.Spec.Priority != nil {
			priority = *pod.Spec.Priority
		}
		by[priority] = append(by[priority], pod)
	}
	for _, priority := range slices.Sorted(maps.Keys(by)) {
		a.Log.InfoContext(ctx, "pods are being stopped", "priority", priority, "pods", len(by[priority]))
		var wg sync.WaitGroup
		pool := worker.NewPool(ctx, stopper{backend{a.driver, a}}, a.Log)
		pool.Ended = func(podsync.Key, types.UID) { wg.Done() }
		for _, pod := range by[priority] {
			stopped := pod.DeepCopy()
			stopped.DeletionTimestamp = &metav1.Time{}
			wg.Add(1)
			pool.Set(podsync.KeyOf(pod), stopped)
		}
		wg.Wait()
		pool.Wait()
	}
}

// A stopper shows workers only what runs: to them a pod that is stopped is gone.
type stopper struct{ backend }

func (s stopper) Observe(ctx context.Context, key podsync.Key, pod *v1.Pod) (podsync.Have, error) {
	have, err := s.backend.Observe(ctx, key, pod)
	have.Containers = slices.DeleteFunc(have.Containers, func(c podsync.Container) bool {
		return c.State != podsync.Running && c.State != podsync.Unknown
	})
	have.Sandboxes = slices.DeleteFunc(have.Sandboxes, func(sb podsync.Sandbox) bool { return !sb.Ready })
	have.Files = nil
	return have, err
}

// Report keeps nothing: that the agent was ended is nothing about the pod.
func (s stopper) Report(*v1.Pod, podsync.Have) *v1.PodStatus { return nil }
