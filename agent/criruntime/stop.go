package criruntime

import (
	"context"
	"errors"
	"time"

	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// leastGrace is the minimum time for a container between SIGTERM and SIGKILL: no program could
// use less.
const leastGrace = 2 // seconds

// Stop implements worker.Runtime: the container's hook runs at once, then Stop waits for its
// turn, and the processes get the rest of the grace period.
func (d *Driver) Stop(ctx context.Context, turn <-chan struct{}, pod *v1.Pod, a podsync.Action) error {
	owner, c, err := d.owner(ctx, pod, a)
	if err != nil || c == nil {
		return gone(err)
	}
	why := "Stopping container " + c.Name // one that ends with its pod needs no reason of its own
	if a.Restart {
		why = a.Why
	}
	d.events.record(owner, c.Name, a.ID, v1.EventTypeNormal, "Killing", why)
	left := int64(a.Grace / time.Second)
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil && left > 0 {
		left -= d.preStop(ctx, owner, c, a.ID, left)
	}
	if left > 0 {
		left -= await(ctx, turn, left)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return gone(d.runtime.StopContainer(ctx, a.ID, max(left, leastGrace)))
}

// owner returns the pod of the container and its spec: the wanted pod, or one accepted earlier,
// or, if neither is known, what the labels say. c is nil if the container does not exist.
func (d *Driver) owner(ctx context.Context, pod *v1.Pod, a podsync.Action) (*v1.Pod, *v1.Container, error) {
	if pod == nil || string(pod.UID) != a.UID {
		pod = d.files.Pod(types.UID(a.UID))
	}
	if pod != nil {
		if c := podsync.ContainerOf(&pod.Spec, a.Name); c != nil {
			return pod, c, nil
		}
	}
	resp, err := d.runtime.ContainerStatus(ctx, a.ID, false)
	if err = Fault(err); err != nil {
		return nil, nil, err
	}
	pod, c := podspec.Restored(resp.GetStatus().GetLabels(), resp.GetStatus().GetAnnotations())
	return pod, c, nil
}

// preStop runs the hook, for at most left seconds, and returns how many it took. The container
// is stopped even if the hook fails. No event has the hook's output: it may be secret.
func (d *Driver) preStop(ctx context.Context, pod *v1.Pod, c *v1.Container, id string, left int64) int64 {
	begin := time.Now()
	limited, cancel := context.WithTimeout(ctx, podsync.Seconds(left))
	defer cancel()
	if err := d.hook(limited, pod, c, id, c.Lifecycle.PreStop); err != nil && limited.Err() == nil {
		d.o.Log.WarnContext(ctx, "preStop hook failed", "container", c.Name, "err", err)
		d.events.record(pod, c.Name, id, v1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
	}
	return int64(time.Since(begin) / time.Second)
}

// await waits for the turn, for at most left seconds, and returns how many it took.
func await(ctx context.Context, turn <-chan struct{}, left int64) int64 {
	begin := time.Now()
	alarm := time.NewTimer(podsync.Seconds(left))
	defer alarm.Stop()
	select {
	case <-turn:
	case <-alarm.C:
	case <-ctx.Done():
	}
	return int64(time.Since(begin) / time.Second)
}

// gone returns nil for the error that an object does not exist.
func gone(err error) error {
	if err = Fault(err); errors.Is(err, fault.NotFound) {
		return nil
	}
	return err
}
