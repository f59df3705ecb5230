package agent

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/autoupdate"
	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/housekeeping"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/probe"
	"github.com/crisp-cri/crisp/agent/pull"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/agent/volume"
	"github.com/crisp-cri/crisp/agent/worker"
	"github.com/crisp-cri/crisp/internal/periodic"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// An Agent runs pods. Its exported fields are what may be asked of it, from Open until Close.
type Agent struct {
	Wanted    *source.Manager // the wanted pods, and the objects that they refer to
	Files     *podfiles.Store // what is on disk of pods, until nothing is left of them
	Statuses  *status.Store
	Events    *status.EventStore
	Node      *node.State
	Runtime   *criruntime.Connection
	Pulls     *pull.Watcher
	Lists     *criruntime.PLEG
	Probes    *probe.Manager
	Volumes   *volume.Maker
	Workers   *worker.Workers // stop, start, restart and drain
	Ephemeral *source.EphemeralStore
	heartbeat // Health

	o          Options
	lock       *rootLock
	source     source.Source // nil: only manifests
	observer   Observer
	pods       *node.Pods
	host       nodeHost
	shown      nodeConditions
	driver     *criruntime.Driver
	results    *probe.Results
	admission  *admitter // which pods may run here
	containers *node.ContainerManager
	keeper     *housekeeping.Keeper
	updates    *autoupdate.Store
	stopped    *worker.Stops
	renamed    chan struct{} // of capacity 1: see rename

	// Only the loop uses these.
	shownIPs []string        // the addresses in the node's status
	deferred []source.Change // changes before the runtime has answered
	early    []podsync.Key   // pods that the runtime reported before all sources did
	evicted  map[types.UID]*evicted
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
func (a *Agent) loop(ctx context.Context) error {
	updates, changes := make(chan source.Update), make(chan criruntime.Change)
	answered, tried := make(chan criruntime.Answer, 1), make(chan struct{}, 1)
	go func() { answered <- a.Runtime.Await(ctx, a.o.Connect, tried) }()
	begin := sync.OnceFunc(func() {
		a.o.Log.InfoContext(ctx, "agent started", "node", a.o.NodeName, "manifests", a.o.Manifests)
		a.startSources(ctx, updates)
	})
	pulse, keep := time.NewTicker(tick), time.NewTicker(again)
	defer pulse.Stop()
	defer keep.Stop()
	for {
		a.beat()
		select {
		case <-ctx.Done():
			a.end(ctx)
			return nil
		case <-tried:
			begin()
		case r := <-answered:
			err := r.Err
			if err == nil {
				begin()
				err = a.connected(ctx, r, changes)
			}
			if ctx.Err() != nil {
				continue
			}
			if err != nil {
				return err
			}
		case <-pulse.C:
		case <-keep.C:
			if a.Workers.Begun() {
				a.lookAgain()
			}
		case u := <-updates:
			a.update(ctx, u)
		case <-a.Wanted.Due():
			a.apply(ctx, a.Wanted.Reconcile())
		case c := <-changes:
			if c.Back {
				a.Workers.WakeAll()
			}
			for _, key := range c.Keys {
				a.changed(key)
			}
		}
	}
}

func (a *Agent) connected(ctx context.Context, r criruntime.Answer, changes chan<- criruntime.Change) error {
	version, err := a.Runtime.Connect(ctx, r.Runtime, r.Images)
	if err != nil {
		return criruntime.Fault(err)
	}
	a.o.Log.InfoContext(ctx, "runtime connected", "runtime", version.RuntimeName, "version", version.RuntimeVersion)
	if err := a.containers.Open(ctx); err != nil {
		a.o.Log.WarnContext(ctx, "pods have no cgroups of their own", "err", err)
		a.Events.Event(status.NodeRef(a.o.NodeName), v1.EventTypeWarning, "CgroupsUnavailable", err.Error())
	}
	a.keeper.Begin(ctx)
	go periodic.Run(ctx, again, a.driver.FollowResolvConf)
	a.Workers.Begin(ctx, backend{a.driver, a})
	a.apply(ctx, a.deferred)
	if a.Wanted.Ready() {
		a.ready()
	}
	go a.host.Readiness.Run(ctx, a.Lists)
	go a.Lists.Run(ctx, changes)
	go a.keepNames(ctx)
	if a.o.UpdateInterval > 0 {
		go a.keepImages(ctx)
	}
	return nil
}

func (a *Agent) end(ctx context.Context) {
	if !a.Workers.Begun() {
		return
	}
	a.Workers.Wait()
	a.Probes.Wait()
	stop := a.o.StopPods || shutsDown()
	if stop {
		a.stopPods(context.WithoutCancel(ctx))
	}
	a.o.Log.Info("agent ended", "pods_stopped", stop)
}

// lookAgain ends the probes of pods that are no longer wanted, and checks state that changes
// with time or outside the agent.
func (a *Agent) lookAgain() {
	wanted := map[types.UID]bool{}
	for _, pod := range a.Wanted.Pods() {
		wanted[pod.UID] = true
	}
	a.Probes.Keep(wanted)
	a.retryResizes(wanted)
	a.retryFailed(wanted)
	a.updateImages()
	a.Workers.GoOn()
	if a.Wanted.Ready() {
		a.stopped.Keep(a.Wanted.Pods())
		a.Ephemeral.Keep(wanted)
	}
	a.showAddresses()
}

// changed wakes the worker of a pod that has changed in the runtime. If the pod has no worker,
// it gets one as soon as all sources have reported, which ends the pod if it is not wanted.
func (a *Agent) changed(key podsync.Key) {
	switch {
	case a.Workers.Wake(key):
	case a.Wanted.Ready():
		a.Workers.Set(key, a.allocate(a.Wanted.Pod(key)))
	default:
		a.early = append(a.early, key)
	}
}

func (a *Agent) update(ctx context.Context, u source.Update) {
	first := !a.Wanted.Ready()
	changes, refers, problems := a.Wanted.Update(u)
	for _, err := range problems {
		a.o.Log.ErrorContext(ctx, "manifest rejected", "err", err)
	}
	a.apply(ctx, changes) // also of none: a Service may have changed
	if !a.Workers.Begun() {
		return
	}
	a.keeper.RefreshVolumes()
	if refers { // pods may refer to the changed objects
		for _, pod := range a.Wanted.Pods() {
			a.Workers.Again(podsync.KeyOf(pod))
		}
	}
	if first && a.Wanted.Ready() {
		a.ready()
	}
}

// ready is called when all sources have reported. From then on the agent ends pods that are not
// wanted: those that have files, and those that the runtime has reported.
func (a *Agent) ready() {
	for _, pod := range a.Files.Accepted() {
		a.early = append(a.early, podsync.KeyOf(pod))
	}
	for _, key := range a.early {
		a.Workers.Set(key, a.allocate(a.Wanted.Pod(key)))
	}
	a.early = nil
}

// apply passes changes to the workers, or keeps them until there are workers.
func (a *Agent) apply(ctx context.Context, changes []source.Change) {
	defer a.rename()
	a.recordEndings()
	for _, c := range changes {
		if c.Pod != nil && c.Op == source.OpAdd {
			a.observer.Seen(c.Pod)
		}
	}
	if !a.Workers.Begun() {
		a.deferred = source.Defer(a.deferred, changes)
		a.observer.Changed(nil)
		return
	}
	for _, c := range changes { // first, so that new pods are admitted beside these pods' allocations
		if c.Pod != nil && a.Files.Pod(c.Pod.UID) != nil {
			a.allocate(c.Pod)
		}
	}
	for _, c := range changes {
		a.o.Log.InfoContext(ctx, "pod changed", "pod", c.Key.String(), "op", c.Op.String())
		if c.Pod == nil {
			a.Statuses.Forget(c.Key)
			if a.Wanted.Ready() {
				a.stopped.Forget(c.Key)
			}
		} else if a.Files.Ending(c.Pod.UID) {
			a.Statuses.Drop(c.Pod.UID) // the status is that of the old pod
		}
		if v := a.admit(c); v != nil {
			a.Workers.Reject(c.Key, c.Pod, *v)
			continue
		}
		a.Workers.Set(c.Key, a.allocate(c.Pod))
		if c.Pod != nil && c.Pod.Annotations[podsync.AnnotationEnded] != "" {
			a.Workers.Halt(c.Key, c.Pod.UID, false) // its worker may be pulling an image
		}
	}
	a.observer.Changed(nil)
}

// recordEndings records that pods that are no longer wanted are ending, before the API shows
// that they are gone. Their workers would record it too, but may be busy for long.
func (a *Agent) recordEndings() {
	if !a.Wanted.Ready() {
		return
	}
	for _, pod := range a.Files.Accepted() {
		a.recordEnding(pod)
	}
}

// recordEnding does so for one pod. A worker calls it after it has made files for its pod: if
// the pod had none when it became unwanted, recordEndings has skipped it.
func (a *Agent) recordEnding(pod *v1.Pod) {
	if !a.Wanted.Ready() || a.Files.Pod(pod.UID) == nil {
		return
	}
	if now := a.Wanted.Pod(podsync.KeyOf(pod)); now == nil || now.UID != pod.UID {
		a.Files.MarkEnding(now, podsync.Have{Files: []string{string(pod.UID)}})
	}
}

// admit returns why a new pod may not run here; nil if it may. A pod that an earlier agent
// admitted already runs and is not checked again. A rejected pod is, since there may be room
// now, unless it belongs to a workload, which has replaced it.
func (a *Agent) admit(c source.Change) *podsync.Verdict {
	if c.Op != source.OpAdd {
		return nil
	}
	if s := a.Files.LoadStatus(c.Pod); s != nil {
		if !status.Rejected(s) || !stays(c.Pod) || !a.dropStatus(c.Pod) {
			return nil
		}
	}
	return a.admission.Admit(c.Pod, a.pods.Allocated())
}

func (a *Agent) dropStatus(pod *v1.Pod) bool {
	if err := a.Files.DropStatus(pod); err != nil {
		a.o.Log.Error("status of a rejected pod not removed", "pod", podsync.KeyOf(pod).String(), "err", err)
		return false
	}
	a.Statuses.Drop(pod.UID)
	return true
}

// showAddresses sets the addresses in the node's status when they have changed, and wakes all
// workers, as the statuses of pods have them too.
func (a *Agent) showAddresses() {
	now := a.host.Addresses.Get()
	if slices.Equal(now, a.shownIPs) {
		return
	}
	a.o.Log.Info("addresses of the node changed", "from", a.shownIPs, "to", now)
	a.shownIPs = now
	a.Node.SetAddresses(now)
	a.rename()
	a.Workers.WakeAll()
}

func (o *Options) sources() []string {
	list := []string{manifest.SourceFile}
	if o.URL != "" {
		list = append(list, manifest.SourceHTTP)
	}
	return list
}

// startSources starts all sources, which send updates until ctx ends.
func (a *Agent) startSources(ctx context.Context, updates chan<- source.Update) {
	copies := func(name string) source.Copies {
		return source.Copies(filepath.Join(a.o.Root, "copies", name))
	}
	dir := &source.Dir{Path: a.o.Manifests, Log: a.o.Log, Copies: copies(manifest.SourceFile), Decode: a.decode(manifest.SourceFile)}
	go dir.Run(ctx, updates)
	if a.o.URL != "" {
		url := &source.URL{URL: a.o.URL, Header: a.o.URLHeader, Log: a.o.Log, Copies: copies(manifest.SourceHTTP), Decode: a.decode(manifest.SourceHTTP)}
		go url.Run(ctx, updates)
	}
	if a.source != nil {
		go a.source.Run(ctx, updates)
	}
}

func (a *Agent) decode(name string) source.Decode {
	return func(path string, data []byte, accepted bool) ([]manifest.Object, manifest.Errors, error) {
		return manifest.Read(path, data, manifest.Options{NodeName: a.o.NodeName, Source: name, Accepted: accepted})
	}
}
