package agent

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/crisp-cri/crisp/agent/api"
	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/event"
	"github.com/crisp-cri/crisp/agent/gate"
	"github.com/crisp-cri/crisp/agent/measure"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/pleg"
	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/probe"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/agent/store"
	"github.com/crisp-cri/crisp/agent/worker"
	"github.com/crisp-cri/crisp/agent/workload"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
)

type agent struct {
	o      Options
	files  *podfiles.Store
	roster *roster
	host   host
	grants *grants
	events event.Recorder
	driver *criruntime.Driver
	wanted *desired.Manager
	status *status.Store
	probes *probe.Manager
	gate   *gate.Gate
	pleg   *pleg.Generator
	store  *store.Store
	api    *api.Server
	node   *node.State

	addresses *addresses
	shownIPs  []string // addresses that the node shows; only the loop uses it

	// The runtime, once it has answered; nil before.
	runtime internalapi.RuntimeService
	images  internalapi.ImageManagerService
	counts  *measure.Counts // of what is asked of the runtime
	// admission decides which pods may run here.
	admission *admission
	// volumesDue tells that objects have changed which volumes may show.
	volumesDue chan struct{}
	workers    *workers
	early      []podsync.Key // in the runtime before the source has reported
	beat       atomic.Int64  // when the loop last began a turn; Unix ns
}

const (
	// tick is how often the loop turns when nothing happens.
	tick = time.Second
	// housekeeping is how often is cleared away what no change tells of.
	housekeeping = 2 * time.Second
)

// stalled is how long a turn may take before something is wrong. It varies in
// tests only.
var stalled = 2 * time.Minute

// loop hands on what the sources and the runtime tell, beginning with the changes
// that were held. Nothing in it blocks. Probes are not in it: what they find changes
// the pod's status and wakes its worker itself.
func (a *agent) loop(ctx context.Context, updates <-chan source.Update, held []desired.Change) {
	changes := make(chan pleg.Change)
	pool := worker.NewPool(ctx, backend{a.driver, a}, a.o.Log)
	pool.Ended = a.ended
	a.workers.pool.Store(pool)
	a.apply(ctx, pool, held)
	if a.wanted.Ready() {
		a.ready(pool)
	}
	go a.gate.Run(ctx)
	go a.pleg.Run(ctx, changes)
	pulse, keep := time.NewTicker(tick), time.NewTicker(housekeeping)
	defer pulse.Stop()
	defer keep.Stop()
	for {
		a.beat.Store(time.Now().UnixNano())
		select {
		case <-ctx.Done():
			pool.Wait()
			a.probes.Wait()
			if a.o.StopPods {
				a.stopPods(context.WithoutCancel(ctx))
			}
			return
		case <-pulse.C:
		case <-keep.C:
			a.housekeep()
		case u := <-updates:
			a.update(ctx, pool, u)
		case <-a.wanted.Due():
			a.apply(ctx, pool, a.wanted.Reconcile())
		case c := <-changes:
			if c.Back {
				pool.WakeAll()
			}
			for _, key := range c.Keys {
				a.changed(pool, key)
			}
		}
	}
}

// LoopHealth says what is wrong with the loop: that it has stood still.
func (a *agent) LoopHealth() error {
	beat := a.beat.Load()
	if beat == 0 {
		return errors.New("the loop has not begun")
	}
	if still := time.Since(time.Unix(0, beat)); still > stalled {
		return fmt.Errorf("the loop has stood still for %s", still.Round(time.Second))
	}
	return nil
}

// housekeep ends the probes of pods that are not wanted any more, and looks after
// what changes by time or by others.
func (a *agent) housekeep() {
	wanted := map[types.UID]bool{}
	for _, pod := range a.wanted.Pods() {
		wanted[pod.UID] = true
	}
	a.probes.Keep(wanted)
	a.retryResizes(wanted)
	a.retryRejected()
	a.expire()
	a.showAddresses()
}

// changed passes a change in the runtime on. A pod without a worker is one that
// nobody wants, unless the source has not reported yet.
func (a *agent) changed(pool *worker.Pool, key podsync.Key) {
	switch {
	case pool.Wake(key):
	case a.wanted.Ready():
		pool.Set(key, a.allocate(a.wanted.Pod(key)))
	default:
		a.early = append(a.early, key)
	}
}

// read takes in what a source says now. refers says that objects have changed which pods
// may refer to.
func (a *agent) read(ctx context.Context, u source.Update) (changes []desired.Change, refers bool) {
	changes, refers, problems := a.wanted.Update(u)
	for _, err := range problems {
		a.o.Log.ErrorContext(ctx, "manifest rejected", "err", err)
	}
	return changes, refers
}

// update has the workers follow what a source says now.
func (a *agent) update(ctx context.Context, pool *worker.Pool, u source.Update) {
	first := !a.wanted.Ready()
	changes, refers := a.read(ctx, u)
	a.apply(ctx, pool, changes)
	a.refreshVolumes()
	if refers {
		for _, pod := range a.wanted.Pods() {
			pool.Again(podsync.KeyOf(pod))
		}
	}
	if first && a.wanted.Ready() {
		a.ready(pool)
	}
}

// ready has what is not wanted ended from now on: what only has files, and what the
// runtime has told of. All sources have reported.
func (a *agent) ready(pool *worker.Pool) {
	for _, pod := range a.files.Accepted() {
		a.early = append(a.early, podsync.KeyOf(pod))
	}
	for _, key := range a.early {
		pool.Set(key, a.allocate(a.wanted.Pod(key)))
	}
	a.early = nil
}

// apply tells the workers what has changed.
func (a *agent) apply(ctx context.Context, pool *worker.Pool, changes []desired.Change) {
	for _, c := range changes { // new ones are let in beside what these may have
		if c.Pod != nil && a.files.Pod(c.Pod.UID) != nil {
			a.allocate(c.Pod)
		}
	}
	for _, c := range changes {
		a.o.Log.InfoContext(ctx, "pod changed", "pod", c.Key.String(), "op", c.Op.String())
		if c.Pod == nil {
			a.status.Forget(c.Key)
		} else if a.files.Ending(c.Pod.UID) {
			a.status.Drop(c.Pod.UID) // what was told of it is told of what ends
		}
		if v := a.judge(c); v != nil {
			pool.Reject(c.Key, c.Pod, *v)
			continue
		}
		pool.Set(c.Key, a.allocate(c.Pod))
	}
	a.api.Poke()
}

// judge asks whether a new pod may run here. One that an earlier agent has let in
// is not asked about again: it runs. One that was rejected is, for there may be room
// now; but not that of a workload, which has another in its place.
func (a *agent) judge(c desired.Change) *podsync.Verdict {
	if c.Op != desired.Add {
		return nil
	}
	if s := a.files.LoadStatus(c.Pod); s != nil {
		if !mayRetry(c.Pod, s) || !a.dropStatus(c.Pod) {
			return nil
		}
	}
	return a.admission.admit(c.Pod, a.roster.allocated())
}

// mayRetry reports whether a pod was rejected and may be asked about again: it has no
// state, for it has never begun, and nobody has put another in its place.
func mayRetry(pod *v1.Pod, s *v1.PodStatus) bool {
	return status.Rejected(s) && pod.Annotations[workload.AnnotationWorkload] == "" && pod.DeletionTimestamp == nil
}

// dropStatus has the status of a rejected pod forgotten.
func (a *agent) dropStatus(pod *v1.Pod) bool {
	if err := a.files.DropStatus(pod); err != nil {
		a.o.Log.Error("pod stays rejected", "pod", podsync.KeyOf(pod).String(), "err", err)
		return false
	}
	a.status.Drop(pod.UID)
	return true
}

// retryRejected lets in the rejected pods that fit now: others have gone or changed, or
// the pressure is over. As long as they do not, nothing is told again.
func (a *agent) retryRejected() {
	pool := a.workers.pool.Load()
	if pool == nil {
		return
	}
	for _, pod := range a.wanted.Pods() {
		if s := a.status.Get(pod.UID); s == nil || !mayRetry(pod, s) || !a.admission.room(pod, a.roster.allocated()) {
			continue
		}
		if v := a.admission.admit(pod, a.roster.allocated()); v == nil && a.dropStatus(pod) {
			a.o.Log.Info("rejected pod fits now", "pod", podsync.KeyOf(pod).String())
			pool.Admit(podsync.KeyOf(pod), a.allocate(pod))
		}
	}
}

// backend is the Runtime of the workers: the driver, and what else is known of
// pods.
type backend struct {
	*criruntime.Driver
	a *agent
}

func (b backend) Observe(ctx context.Context, key podsync.Key, pod *v1.Pod) (podsync.Have, error) {
	have, err := b.Driver.Observe(ctx, key, pod)
	if err != nil || pod == nil {
		return have, err
	}
	have.Probes = b.a.probeResults(pod, have)
	have.Scarce = b.a.workers.scarce.Load()
	have.Pending = b.a.roster.resizes.pending(pod.UID)
	return have, nil
}

func (b backend) Report(pod *v1.Pod, have podsync.Have) *v1.PodStatus {
	have.Ending = b.a.files.MarkEnding(pod, have)
	for _, uid := range have.Ending {
		if pod == nil || string(pod.UID) != uid {
			b.a.status.Drop(types.UID(uid))
		}
	}
	if have.Ends(pod) { // nothing that is there is of the pod that is to begin
		have = podsync.Have{Files: have.Files, Ending: have.Ending}
	}
	var old *v1.PodStatus
	if pod != nil {
		old = b.a.status.Get(pod.UID)
	}
	now := b.a.status.Report(pod, have)
	if now != nil {
		tellBackoffs(b.a.events, pod, old, now)
		if err := b.a.files.Change(pod); err != nil {
			b.a.o.Log.Warn("pod not kept", "pod", podsync.KeyOf(pod).String(), "err", err)
		}
		b.a.tellStatus(pod, now)
	}
	b.a.api.Poke()
	return now
}

// tellStatus tells workloads and probes of a pod's status.
func (a *agent) tellStatus(pod *v1.Pod, now *v1.PodStatus) {
	a.wanted.Observe(pod, *now)
	a.probe(pod, now)
}

func (a *agent) probeResults(pod *v1.Pod, have podsync.Have) map[string]podsync.Probes {
	var ids []string
	for _, c := range have.Containers {
		if c.UID == string(pod.UID) {
			ids = append(ids, c.ID)
		}
	}
	return a.probes.Results(pod, ids)
}

// probed shows what a probe has found, and has the pod's worker look at it as soon as
// it can: it may be pulling an image, or waiting for a container to end.
func (a *agent) probed(key podsync.Key) {
	if pod := a.wanted.Pod(key); pod != nil {
		if pod, now := a.status.Probed(pod.UID); now != nil {
			a.tellStatus(pod, now)
			a.api.Poke()
		}
	}
	a.workers.wake(key)
}

// probe has the pod probed as its status wants it. While it ends only readiness
// is of interest: whether a container lives makes no difference any more.
func (a *agent) probe(pod *v1.Pod, now *v1.PodStatus) {
	running := false
	for _, list := range [][]v1.ContainerStatus{now.InitContainerStatuses, now.ContainerStatuses} {
		for i := range list {
			running = running || list[i].State.Running != nil
			if started := list[i].Started; started != nil && *started && !list[i].Ready {
				a.probes.Hurry(pod.UID, list[i].Name)
			}
		}
	}
	over := podsync.Terminal(now) || pod.DeletionTimestamp != nil
	switch {
	case !over:
		a.probes.Add(pod)
	case running:
		a.probes.Remove(pod.UID, probe.Startup, probe.Liveness)
	default:
		a.probes.Remove(pod.UID)
	}
}
