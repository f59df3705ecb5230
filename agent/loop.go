package agent

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/admission"
	"github.com/crisp-cri/crisp/agent/containermanager"
	"github.com/crisp-cri/crisp/agent/criconn"
	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/ephemeral"
	"github.com/crisp-cri/crisp/agent/event"
	"github.com/crisp-cri/crisp/agent/host"
	"github.com/crisp-cri/crisp/agent/housekeeping"
	"github.com/crisp-cri/crisp/agent/nodepods"
	"github.com/crisp-cri/crisp/agent/pleg"
	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/podworkers"
	"github.com/crisp-cri/crisp/agent/probe"
	"github.com/crisp-cri/crisp/agent/pullwatch"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/agent/stopped"
	"github.com/crisp-cri/crisp/agent/worker"
	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/crisp-cri/crisp/apiserver/startup"
	"github.com/crisp-cri/crisp/apiserver/store"
	"github.com/crisp-cri/crisp/apiserver/workload"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

type agent struct {
	o          Options
	files      *podfiles.Store
	pods       *nodepods.Pods
	host       host.Host
	conditions host.Conditions
	events     event.Recorder
	runtime    *criconn.Connection
	driver     *criruntime.Driver
	wanted     *desired.Manager
	status     *status.Store
	results    *probe.Results
	probes     *probe.Manager
	pleg       *pleg.Generator
	store      *store.Store
	api        *api.Server
	admission  *admission.Admitter // which pods may run here
	containers *containermanager.Manager
	keeper     *housekeeping.Keeper
	workers    *podworkers.Workers
	stopped    *stopped.Store
	ephemeral  *ephemeral.Store
	heartbeat  *heartbeat
	startup    *startup.Keeper
	pulls      *pullwatch.Watcher

	// Only the loop uses these.
	shownIPs []string         // the addresses in the node's status
	deferred []desired.Change // changes before the runtime has answered
	early    []podsync.Key    // pods that the runtime reported before all sources did
}

const (
	// tick is how often the loop runs when nothing happens.
	tick = time.Second
	// again is how often the loop checks state that sends no changes.
	again = 2 * time.Second
)

// loop passes the reports of the sources and the runtime to the workers, until ctx ends. Before
// the runtime has answered it only updates the wanted state; the API already serves objects. An
// error means that there will be no runtime, and no pod was started. Nothing in the loop may
// block for long: health checks and the watchdog report a stuck loop (heartbeat). Probes bypass
// it: Probed changes the pod's status and wakes its worker.
func (a *agent) loop(ctx context.Context) error {
	updates, changes := make(chan source.Update), make(chan pleg.Change)
	answered, tried := make(chan criconn.Answer, 1), make(chan struct{}, 1)
	go func() { answered <- a.runtime.Await(ctx, a.o.Connect, tried) }()
	begin := sync.OnceFunc(func() {
		a.o.Log.InfoContext(ctx, "agent started", "node", a.o.NodeName, "manifests", a.o.Manifests)
		a.startSources(ctx, updates)
	})
	var pool *worker.Pool // nil before the runtime has answered
	pulse, keep := time.NewTicker(tick), time.NewTicker(again)
	defer pulse.Stop()
	defer keep.Stop()
	for {
		a.heartbeat.beat()
		select {
		case <-ctx.Done():
			a.end(ctx, pool)
			return nil
		case <-tried:
			begin()
		case r := <-answered:
			err := r.Err
			if err == nil {
				begin()
				pool, err = a.connected(ctx, r, changes)
			}
			if ctx.Err() != nil {
				continue
			}
			if err != nil {
				return err
			}
		case <-pulse.C:
		case <-keep.C:
			if pool != nil {
				a.lookAgain()
			}
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

// connected starts to run pods once the runtime has answered.
func (a *agent) connected(ctx context.Context, r criconn.Answer, changes chan<- pleg.Change) (*worker.Pool, error) {
	version, err := a.runtime.Connect(ctx, r.Runtime, r.Images)
	if err != nil {
		return nil, criruntime.Fault(err)
	}
	a.o.Log.InfoContext(ctx, "runtime connected", "runtime", version.RuntimeName, "version", version.RuntimeVersion)
	if err := a.containers.Open(ctx); err != nil {
		a.o.Log.WarnContext(ctx, "pods have no cgroups of their own", "err", err)
		a.events.Event(event.Node(a.o.NodeName), v1.EventTypeWarning, "CgroupsUnavailable", err.Error())
	}
	a.keeper.Begin(ctx)
	pool := worker.NewPool(ctx, backend{a.driver, a}, a.o.Log)
	a.workers.Begin(pool)
	a.apply(ctx, pool, a.deferred)
	if a.wanted.Ready() {
		a.ready(pool)
	}
	go a.host.Readiness.Run(ctx, a.pleg)
	go a.pleg.Run(ctx, changes)
	return pool, nil
}

// end waits for the workers and probes, and stops the pods if Options.StopPods is set.
func (a *agent) end(ctx context.Context, pool *worker.Pool) {
	if pool == nil {
		return
	}
	pool.Wait()
	a.probes.Wait()
	if a.o.StopPods {
		a.stopPods(context.WithoutCancel(ctx))
	}
	a.o.Log.Info("agent ended", "pods_stopped", a.o.StopPods)
}

// lookAgain ends the probes of pods that are no longer wanted, and checks state that changes
// with time or outside the agent.
func (a *agent) lookAgain() {
	wanted := map[types.UID]bool{}
	for _, pod := range a.wanted.Pods() {
		wanted[pod.UID] = true
	}
	a.probes.Keep(wanted)
	a.keepStartups(wanted)
	a.retryResizes(wanted)
	a.retryRejected()
	a.expire()
	a.workers.GoOn()
	if a.wanted.Ready() {
		a.stopped.Keep(a.wanted.Pods())
		a.ephemeral.Keep(wanted)
	}
	a.showAddresses()
}

// keepStartups drops the startup stages of pods of which nothing is left.
func (a *agent) keepStartups(wanted map[types.UID]bool) {
	there := maps.Clone(wanted)
	for _, pod := range a.files.Accepted() {
		there[pod.UID] = true
	}
	a.startup.Keep(there)
}

// changed wakes the worker of a pod that has changed in the runtime. If the pod has no worker,
// it gets one as soon as all sources have reported, which ends the pod if it is not wanted.
func (a *agent) changed(pool *worker.Pool, key podsync.Key) {
	switch {
	case pool.Wake(key):
	case a.wanted.Ready():
		pool.Set(key, a.allocate(a.wanted.Pod(key)))
	default:
		a.early = append(a.early, key)
	}
}

// update passes the changes by a source's update to the workers.
func (a *agent) update(ctx context.Context, pool *worker.Pool, u source.Update) {
	first := !a.wanted.Ready()
	changes, refers, problems := a.wanted.Update(u)
	for _, err := range problems {
		a.o.Log.ErrorContext(ctx, "manifest rejected", "err", err)
	}
	a.apply(ctx, pool, changes)
	if pool == nil {
		return
	}
	a.keeper.RefreshVolumes()
	if refers { // pods may refer to the changed objects
		for _, pod := range a.wanted.Pods() {
			pool.Again(podsync.KeyOf(pod))
		}
	}
	if first && a.wanted.Ready() {
		a.ready(pool)
	}
}

// ready is called when all sources have reported. From then on the agent ends pods that are not
// wanted: those that have files, and those that the runtime has reported.
func (a *agent) ready(pool *worker.Pool) {
	for _, pod := range a.files.Accepted() {
		a.early = append(a.early, podsync.KeyOf(pod))
	}
	for _, key := range a.early {
		pool.Set(key, a.allocate(a.wanted.Pod(key)))
	}
	a.early = nil
}

// apply passes changes to the workers, or keeps them until there are workers.
func (a *agent) apply(ctx context.Context, pool *worker.Pool, changes []desired.Change) {
	a.recordEndings()
	for _, c := range changes {
		if c.Pod != nil && c.Op == desired.Add {
			a.startup.Seen(c.Pod)
		}
	}
	if pool == nil {
		a.deferred = desired.Defer(a.deferred, changes)
		a.api.Poke()
		return
	}
	for _, c := range changes { // first, so that new pods are admitted beside these pods' allocations
		if c.Pod != nil && a.files.Pod(c.Pod.UID) != nil {
			a.allocate(c.Pod)
		}
	}
	for _, c := range changes {
		a.o.Log.InfoContext(ctx, "pod changed", "pod", c.Key.String(), "op", c.Op.String())
		if c.Pod == nil {
			a.status.Forget(c.Key)
			if a.wanted.Ready() {
				a.stopped.Forget(c.Key)
			}
		} else if a.files.Ending(c.Pod.UID) {
			a.status.Drop(c.Pod.UID) // the status is that of the old pod
		}
		if v := a.admit(c); v != nil {
			pool.Reject(c.Key, c.Pod, *v)
			continue
		}
		pool.Set(c.Key, a.allocate(c.Pod))
		if c.Pod != nil && c.Pod.Annotations[podsync.AnnotationEnded] != "" {
			pool.Halt(c.Key, c.Pod.UID, false) // its worker may be pulling an image
		}
	}
	a.api.Poke()
}

// recordEndings records that pods that are no longer wanted are ending, before the API shows
// that they are gone. Their workers would record it too, but may be busy for long.
func (a *agent) recordEndings() {
	if !a.wanted.Ready() {
		return
	}
	for _, pod := range a.files.Accepted() {
		a.recordEnding(pod)
	}
}

// recordEnding does so for one pod. A worker calls it after it has made files for its pod: if
// the pod had none when it became unwanted, recordEndings has skipped it.
func (a *agent) recordEnding(pod *v1.Pod) {
	if !a.wanted.Ready() || a.files.Pod(pod.UID) == nil {
		return
	}
	if now := a.wanted.Pod(podsync.KeyOf(pod)); now == nil || now.UID != pod.UID {
		a.files.MarkEnding(now, podsync.Have{Files: []string{string(pod.UID)}})
	}
}

// admit returns why a new pod may not run here; nil if it may. A pod that an earlier agent
// admitted already runs and is not checked again. A rejected pod is, since there may be room
// now, unless it belongs to a workload, which has replaced it.
func (a *agent) admit(c desired.Change) *podsync.Verdict {
	if c.Op != desired.Add {
		return nil
	}
	if s := a.files.LoadStatus(c.Pod); s != nil {
		if !mayRetry(c.Pod, s) || !a.dropStatus(c.Pod) {
			return nil
		}
	}
	return a.admission.Admit(c.Pod, a.pods.Allocated())
}

// mayRetry reports whether a pod was rejected and may be admitted later: it has never started,
// so it has no state, and no workload has replaced it.
func mayRetry(pod *v1.Pod, s *v1.PodStatus) bool {
	return status.Rejected(s) && pod.Annotations[workload.AnnotationWorkload] == "" && pod.DeletionTimestamp == nil
}

// dropStatus removes the status of a rejected pod.
func (a *agent) dropStatus(pod *v1.Pod) bool {
	if err := a.files.DropStatus(pod); err != nil {
		a.o.Log.Error("status of a rejected pod not removed", "pod", podsync.KeyOf(pod).String(), "err", err)
		return false
	}
	a.status.Drop(pod.UID)
	return true
}

// retryRejected admits rejected pods that fit now, because other pods have gone or changed, or
// the node is no longer under pressure. Those that still do not fit are not reported again.
func (a *agent) retryRejected() {
	pool := a.workers.Pool()
	if pool == nil {
		return
	}
	for _, pod := range a.wanted.Pods() {
		if s := a.status.Get(pod.UID); s == nil || !mayRetry(pod, s) || !a.admission.CanAdmit(pod, a.pods.Allocated()) {
			continue
		}
		if v := a.admission.Admit(pod, a.pods.Allocated()); v == nil && a.dropStatus(pod) {
			a.o.Log.Info("rejected pod fits now", "pod", podsync.KeyOf(pod).String())
			pool.Admit(podsync.KeyOf(pod), a.allocate(pod))
		}
	}
}

// showAddresses sets the addresses in the node's status when they have changed, and wakes all
// workers, as the statuses of pods have them too.
func (a *agent) showAddresses() {
	now := a.host.Addresses.Get()
	if slices.Equal(now, a.shownIPs) {
		return
	}
	a.o.Log.Info("addresses of the node changed", "from", a.shownIPs, "to", now)
	a.shownIPs = now
	a.conditions.Node.SetAddresses(now)
	if pool := a.workers.Pool(); pool != nil {
		pool.WakeAll()
	}
}
