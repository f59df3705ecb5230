package agent

import (
	"context"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/probe"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// backend implements worker.Runtime by the driver, and adds what the agent's other parts know
// of pods.
type backend struct {
	*criruntime.Driver
	a *Agent
}

func (b backend) Observe(ctx context.Context, key podsync.Key, pod *v1.Pod) (podsync.Have, error) {
	done := b.a.observer.Observe(pod)
	have, err := b.Driver.Observe(ctx, key, pod)
	done()
	if err != nil || pod == nil {
		return have, err
	}
	have.Probes = b.a.results.Of(pod, have)
	have.Scarce = b.a.Workers.Scarce()
	have.Update = b.a.updates.Condition(pod)
	have.Pending = b.a.pods.Pending(pod.UID)
	have.Stop = b.a.stopped.Of(pod)
	if have.Stop != nil && !have.Stop.On() && !have.Interrupts(string(pod.UID)) {
		b.a.stopped.Forget(key) // its containers run again
	}
	return have, nil
}

func (b backend) Act(ctx, interrupt context.Context, pod *v1.Pod, a podsync.Action) error {
	ctx, interrupt, done := b.a.observer.Act(ctx, interrupt, pod, a)
	err := b.Driver.Act(ctx, interrupt, pod, a)
	done(err)
	if pod != nil {
		b.a.recordEnding(pod)
	}
	return err
}

func (b backend) Report(pod *v1.Pod, have podsync.Have) *v1.PodStatus {
	defer b.a.observer.Observe(pod)()
	have.Ending = b.a.Files.MarkEnding(pod, have)
	for _, uid := range have.Ending {
		if pod == nil || string(pod.UID) != uid {
			b.a.Statuses.Drop(types.UID(uid))
		}
	}
	if have.Ends(pod) { // the existing sandbox and containers belong to the pod that ends, not to the next one
		have = podsync.Have{Files: have.Files, Ending: have.Ending}
		if podsync.Terminal(b.a.Statuses.Get(pod.UID)) { // reported meanwhile, by the round that began before its end
			b.a.Statuses.Drop(pod.UID)
		}
	}
	var old *v1.PodStatus
	if pod != nil {
		old = b.a.Statuses.Get(pod.UID)
	}
	now := b.a.Statuses.Report(pod, have)
	if now == nil {
		b.a.observer.Changed(nil)
		return nil
	}
	b.a.updates.Observed(pod, have)
	b.a.observer.Status(pod, now, have.Failures) // before the writes below: the status is already visible
	b.a.recordEnding(pod)
	status.RecordBackOffEvents(b.a.Events, pod, old, now)
	if err := b.a.Files.Change(pod); err != nil {
		b.a.o.Log.Warn("pod not saved", "pod", podsync.KeyOf(pod).String(), "err", err)
	}
	b.a.publishStatus(pod, now)
	b.a.observer.Changed(pod)
	return now
}

func (a *Agent) publishStatus(pod *v1.Pod, now *v1.PodStatus) {
	a.Wanted.Observe(pod, *now)
	a.rename()
	a.probe(pod, now)
}

func (b backend) Ended(key podsync.Key, uid types.UID) { b.a.observer.Ended(key, uid) }

// Probed publishes the pod's status with a new result of a probe, and wakes the pod's worker.
// It does not wait for the worker, which may be pulling an image, or waiting for a container to
// end.
func (a *Agent) Probed(key podsync.Key, _ probe.Kind) {
	if pod := a.Wanted.Pod(key); pod != nil {
		if pod, now := a.Statuses.Probed(pod.UID); now != nil {
			a.observer.Status(pod, now, nil)
			a.publishStatus(pod, now)
			a.observer.Changed(nil)
		}
	}
	a.Workers.Wake(key)
}

// probe starts and stops the pod's probes to fit its status. While the pod ends, only its
// readiness probes continue: a failed liveness probe would change nothing.
func (a *Agent) probe(pod *v1.Pod, now *v1.PodStatus) {
	running := false
	for _, list := range [][]v1.ContainerStatus{now.InitContainerStatuses, now.ContainerStatuses} {
		for i := range list {
			running = running || list[i].State.Running != nil
			if started := list[i].Started; started != nil && *started && !list[i].Ready {
				a.Probes.AskNow(pod.UID, list[i].Name)
			}
		}
	}
	over := podsync.Terminal(now) || pod.DeletionTimestamp != nil
	switch {
	case !over:
		a.Probes.Add(pod, a)
	case running:
		a.Probes.Remove(pod.UID, probe.Startup, probe.Liveness)
	default:
		a.Probes.Remove(pod.UID)
	}
}
