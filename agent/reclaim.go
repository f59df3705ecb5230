package agent

import (
	"context"
	"time"

	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Reclaim is as evict.Node says.
func (c *care) Reclaim(ctx context.Context) {
	c.removeDead(ctx)
	freed, err := c.collect.FreeAll(ctx)
	if err != nil {
		c.o.Log.WarnContext(ctx, "unused images not removed", "err", err)
		return
	}
	c.o.Log.InfoContext(ctx, "unused images removed for want of space", "bytes", freed)
}

const (
	// removing is how long is waited for dead containers to go.
	removing       = 10 * time.Second
	removingPeriod = 100 * time.Millisecond
)

// removeDead has the workers remove the dead containers of pods that have finished,
// whose images then have no user, and what was run before in the others.
func (c *care) removeDead(ctx context.Context) {
	pool := c.workers.pool.Load()
	if pool == nil {
		return
	}
	c.workers.scarce.Store(true)
	defer c.workers.scarce.Store(false)
	finished := map[string]podsync.Key{}
	for _, pod := range c.wanted.Pods() {
		if c.roster.finished(pod) {
			finished[string(pod.UID)] = podsync.KeyOf(pod)
		}
	}
	pool.WakeAll()
	deadline := time.After(removing)
	for c.anyLeft(ctx, finished) {
		select {
		case <-time.After(removingPeriod):
		case <-deadline:
			return
		case <-ctx.Done():
			return
		}
	}
}

// anyLeft reports whether one of these pods, by UID, has a container or anything else
// that only a pod needs that runs.
func (c *care) anyLeft(ctx context.Context, pods map[string]podsync.Key) bool {
	for uid, key := range pods {
		if pod := c.wanted.Pod(key); pod == nil || string(pod.UID) != uid {
			continue
		}
		if !c.driver.Clean(types.UID(uid)) {
			return true
		}
	}
	list, err := c.runtime.ListContainers(ctx, nil)
	if err != nil {
		return false
	}
	for _, container := range list {
		if _, ok := pods[container.GetLabels()[podspec.LabelPodUID]]; ok {
			return true
		}
	}
	return false
}

// Evict is as evict.Pods says.
func (c *care) Evict(pod *v1.Pod, v podsync.Verdict) { c.workers.end(pod, v) }

// Clean is as evict.Pods says.
func (c *care) Clean(pod *v1.Pod) bool { return c.driver.Clean(pod.UID) }
