package housekeeping

import (
	"context"
	"time"

	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Reclaim implements evict.Node.
func (k *Keeper) Reclaim(ctx context.Context) {
	k.removeDead(ctx)
	freed, err := k.collect.FreeAll(ctx)
	if err != nil {
		k.o.Log.WarnContext(ctx, "unused images not removed", "err", err)
		return
	}
	k.o.Log.InfoContext(ctx, "unused images removed for lack of space", "bytes", freed)
}

const (
	// removing is how long removeDead waits for dead containers to be removed.
	removing       = 10 * time.Second
	removingPeriod = 100 * time.Millisecond
)

// removeDead makes the workers remove the dead containers of finished pods, so that their images
// become unused, and earlier attempts of containers in the other pods.
func (k *Keeper) removeDead(ctx context.Context) {
	finished := map[types.UID]bool{}
	for _, pod := range k.o.Pods.Wanted() {
		if k.o.Pods.Finished(pod) {
			finished[pod.UID] = true
		}
	}
	done, ok := k.o.Workers.Tidy()
	if !ok {
		return
	}
	defer done()
	wait.PollUntilContextTimeout(ctx, removingPeriod, removing, true, func(context.Context) (bool, error) {
		return !k.anyLeft(ctx, finished), nil
	})
}

// anyLeft reports whether one of these pods, by UID, still has a container or anything else
// that only a running pod needs.
func (k *Keeper) anyLeft(ctx context.Context, pods map[types.UID]bool) bool {
	for _, pod := range k.o.Pods.Wanted() {
		if pods[pod.UID] && !k.o.Driver.Clean(pod.UID) {
			return true
		}
	}
	list, err := k.o.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return false
	}
	for _, container := range list {
		if pods[types.UID(container.GetLabels()[podspec.LabelPodUID])] {
			return true
		}
	}
	return false
}

// Evict implements evict.Pods.
func (k *Keeper) Evict(pod *v1.Pod, v podsync.Verdict) { k.o.Workers.End(pod, v) }

// Clean implements evict.Pods.
func (k *Keeper) Clean(pod *v1.Pod) bool { return k.o.Driver.Clean(pod.UID) }
