// Package agent runs pods on one node without a cluster: what the kubelet is to
// a cluster, it is to a directory of manifests. It speaks to the runtime by CRI
// and by nothing else, so it runs on crispd as on any other.
//
//	manifests ─▶ source ─▶ manifest ─▶ desired ─┐
//	             (watch)   (decode)    (merge)  │ which pods are wanted
//	                                            ▼
//	                                          worker   one goroutine for each pod:
//	                                            │      observe → compute → act
//	                    podsync (pure) ◀────────┤
//	                                            ▼
//	 pleg ◀── lists, events ── runtime ◀── CRI ── crix
//	  └──▶ wakes workers                        │
//	                             status ◀───────┘ what is known of each pod
//
// The runtime and the labels of what runs in it are the ground truth. The agent
// may be killed at any moment: the next one observes, finds by labels what its
// predecessor made, and goes on. The runtime may be killed too; the agent waits
// for it for ever and touches nothing meanwhile. An agent that ends leaves all
// containers running.
//
// Pods are found by namespace and name. The UID follows from the manifest's
// content, so an edited manifest is another pod of the same name, and it begins
// when the old one has ended.
package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/crisp-cri/crisp/agent/crix"
	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/pleg"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/agent/worker"
	"github.com/crisp-cri/crisp/internal/fault"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
)

// Options are what an agent is started with.
type Options struct {
	Manifests      string       // directory of the manifest files
	Root           string       // the agent's own directory
	LogDir         string       // of the pods' logs; "" is <Root>/logs
	NodeName       string       // "" is the host name
	NodeIPs        []netip.Addr // nil: found out
	ResolvConf     string       // of the node; "" gives pods the runtime's choice
	SeccompDefault bool         // RuntimeDefault for containers that name no profile
	Log            *slog.Logger

	Endpoint string // what Connect connects to; recorded for the command line
	// Connect is called until it succeeds.
	Connect func(context.Context) (internalapi.RuntimeService, internalapi.ImageManagerService, error)
}

// connectRetry is how long the agent waits before it tries to connect again. It
// may have been started before the runtime.
const connectRetry = time.Second

// Run runs the agent until ctx ends, which is no error. An error means that it
// could not begin.
func Run(ctx context.Context, o Options) error {
	if err := o.complete(); err != nil {
		return err
	}
	unlock, err := lockRoot(o.Root)
	if err != nil {
		return err
	}
	defer unlock()
	runtime, images := connect(ctx, o)
	if ctx.Err() != nil {
		return nil
	}
	version, err := runtime.Version(ctx, "")
	if err != nil {
		return crix.Fault(err)
	}
	driver, err := crix.New(crix.Options{
		Root: o.Root, LogDir: o.LogDir, NodeName: o.NodeName, NodeIPs: o.NodeIPs,
		ResolvConf: o.ResolvConf, SeccompDefault: o.SeccompDefault, Log: o.Log,
	}, runtime, images)
	if err != nil {
		return err
	}
	wanted := desired.New([]string{manifest.SourceFile})
	wanted.Resume(driver.Accepted(), driver.LoadStatus)
	if err := crix.RecordEndpoint(o.Root, o.Endpoint); err != nil {
		return err
	}
	a := &agent{
		Options: o,
		driver:  driver,
		wanted:  wanted,
		status: &status.Store{
			Node: status.Node{Runtime: version.RuntimeName, HostIPs: texts(o.NodeIPs)},
			Load: driver.LoadStatus,
			Save: driver.SaveStatus,
			Log:  o.Log,
		},
	}
	o.Log.InfoContext(ctx, "agent started", "node", o.NodeName, "manifests", o.Manifests, "runtime", version.RuntimeName, "version", version.RuntimeVersion)
	a.loop(ctx)
	o.Log.Info("agent ended, pods run on")
	return nil
}

type agent struct {
	Options
	driver *crix.Driver
	wanted *desired.Manager
	status *status.Store
	early  []podsync.Key // in the runtime before the source has reported
}

// backend is the Runtime of the workers.
type backend struct {
	*crix.Driver
	status *status.Store
}

func (b backend) Report(pod *v1.Pod, have podsync.Have) *v1.PodStatus {
	s := b.status.Report(pod, have)
	b.MarkEnding(pod, have)
	return s
}

// loop hands on what the source and the runtime tell. Nothing in it blocks.
func (a *agent) loop(ctx context.Context) {
	updates := make(chan source.Update)
	changes := make(chan pleg.Change)
	copies := source.Copies(filepath.Join(a.Root, "copies", manifest.SourceFile))
	dir := &source.Dir{Path: a.Manifests, Log: a.Log, Copies: copies, Decode: func(path string, data []byte) ([]manifest.Object, manifest.Errors, error) {
		return manifest.Read(path, data, manifest.Options{NodeName: a.NodeName, Source: manifest.SourceFile})
	}}
	go dir.Run(ctx, updates)
	go (&pleg.Generator{Runtime: a.driver, Log: a.Log}).Run(ctx, changes)
	pool := worker.NewPool(ctx, backend{a.driver, a.status}, a.Log)
	for {
		select {
		case <-ctx.Done():
			pool.Wait()
			return
		case u := <-updates:
			a.update(ctx, pool, u)
		case <-a.wanted.Due():
			a.set(ctx, pool, a.wanted.Reconcile())
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

// changed passes a change in the runtime on. A pod without a worker is one that
// nobody wants, unless the source has not reported yet.
func (a *agent) changed(pool *worker.Pool, key podsync.Key) {
	switch {
	case pool.Wake(key):
	case a.wanted.Ready():
		pool.Set(key, a.wanted.Pod(key))
	default:
		a.early = append(a.early, key)
	}
}

// update takes in what the manifests say now.
func (a *agent) update(ctx context.Context, pool *worker.Pool, u source.Update) {
	first := !a.wanted.Ready()
	changes, _, problems := a.wanted.Update(u)
	for _, err := range problems {
		a.Log.ErrorContext(ctx, "manifest rejected", "err", err)
	}
	a.set(ctx, pool, changes)
	if !first {
		return
	}
	// From now on what is not wanted may be ended: what only has files, and
	// what the runtime has told of.
	for _, pod := range a.driver.Accepted() {
		a.early = append(a.early, podsync.KeyOf(pod))
	}
	for _, key := range a.early {
		pool.Set(key, a.wanted.Pod(key))
	}
	a.early = nil
}

// set hands on which pods are wanted.
func (a *agent) set(ctx context.Context, pool *worker.Pool, changes []desired.Change) {
	for _, c := range changes {
		a.Log.InfoContext(ctx, "pod wanted", "pod", c.Key.String(), "wanted", c.Pod != nil)
		if c.Pod == nil {
			a.status.Forget(c.Key)
		}
		pool.Set(c.Key, c.Pod)
	}
}

func (o *Options) complete() error {
	var err error
	for _, path := range []*string{&o.Manifests, &o.Root} {
		if *path == "" {
			return fault.Invalid.Errorf("agent: the directories of the manifests and of the agent must be given")
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	if o.LogDir == "" {
		o.LogDir = filepath.Join(o.Root, "logs")
	}
	if o.LogDir, err = filepath.Abs(o.LogDir); err != nil {
		return err
	}
	if o.NodeName == "" {
		if o.NodeName, err = os.Hostname(); err != nil {
			return err
		}
	}
	if o.NodeIPs == nil {
		o.NodeIPs = nodeIPs()
	}
	return nil
}

// lockRoot makes sure that one agent works on the directory.
func lockRoot(root string) (unlock func(), err error) {
	if err := os.MkdirAll(root, 0o750); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(root, "agent.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fault.Exists.Errorf("agent: another agent works on %s", root)
	}
	return func() { f.Close() }, nil
}

// connect returns a runtime that has answered, or nothing when ctx has ended.
func connect(ctx context.Context, o Options) (internalapi.RuntimeService, internalapi.ImageManagerService) {
	complaint := ""
	for ctx.Err() == nil {
		runtime, images, err := o.Connect(ctx)
		if err == nil {
			return runtime, images
		}
		if text := err.Error(); text != complaint {
			o.Log.WarnContext(ctx, "runtime is not there yet", "err", err)
			complaint = text
		}
		select {
		case <-ctx.Done():
		case <-time.After(connectRetry):
		}
	}
	return nil, nil
}
