// Package agent runs pods on one node without a cluster, from a directory of manifests, as the
// kubelet does for a cluster. It uses only CRI, so it runs on any runtime; of crispd it also
// reads the progress of pulls (pull.Watcher).
//
//	manifests ─▶ manifest ─▶ source ────────────┐
//	             (decode)    (watch, merge)     │ which pods are wanted
//	                                            ▼
//	                                          worker   one goroutine for each pod:
//	                                            │      observe → compute → act
//	                    podsync (pure) ◀────────┤
//	                                            ▼
//	          runtime ◀── CRI: calls ─────── criruntime ◀── podspec (pure)
//	           ▲    └──── lists, events ──────▶ │
//	           │ exec                           ▼
//	         probe ─── results ─▶ worker      status   what is known of each pod
//
// Beside the workers, housekeeping looks after the node (evictions, images, logs). This package
// makes the parts (newAgent), and its loop passes changes between them.
//
// It serves nothing and knows no API. What embeds it (package apiserver) may be one more source
// of objects, expand workloads to pods (source.Expander), follow what happens to pods (Observer),
// and ask an Agent for what its exported fields have.
//
// The runtime and the labels of its sandboxes and containers are the ground truth. The agent may
// be killed at any moment: the next one observes, and finds by labels what its predecessor made.
// The runtime may be killed too: the agent waits for it without a limit and changes nothing
// meanwhile. When the agent ends, all containers keep running, unless Options.StopPods is set or
// the machine is being shut down.
//
// Pods are found by namespace and name. The UID is derived from the manifest's content, so an
// edited manifest is another pod of the same name, which starts when the old one has ended.
package agent

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"

	"github.com/crisp-cri/crisp/agent/autoupdate"
	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/housekeeping"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/probe"
	"github.com/crisp-cri/crisp/agent/pull"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/agent/worker"
	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/sdnotify"
)

type Options struct {
	Manifests      string           // directory of the manifest files
	URL            string           // of one more manifest; "" is none
	URLHeader      http.Header      // of the requests for it
	Root           string           // the agent's own directory
	Version        string           // of crisp
	Expand         source.Expander  // makes the pods of workloads; nil: they are rejected
	LogDir         string           // directory of the agent's files
	NodeName       string           // "" is the host name
	NodeIPs        []netip.Addr     // nil: detected, and followed when they change
	ResolvConf     string           // of the node; "" gives pods the runtime's choice
	ClusterDNS     []string         // name servers for dnsPolicy ClusterFirst; without any, it means Default
	ClusterDomain  string           // suffix of the names of pods with a subdomain and, with ClusterDNS, of search domains
	SeccompDefault bool             // RuntimeDefault for containers that name no profile
	NoCPUQuota     bool             // CPU limits are not enforced
	Pulls          criruntime.Pulls // limits of pulling images
	PullPolicy     pull.Policy      // which local images need credentials to use; "" is the kubelet's default
	PullUnasked    []string         // images that need none, by the policy NeverVerifyAllowlisted
	Plugins        string           // file with a CredentialProviderConfig; "" for none
	PluginDir      string           // of its programs
	LogLinks       string           // directory of links to the containers' logs; "" for none
	StopPods       bool             // stop the pods when the agent ends; else only when systemd shuts the machine down
	Node           NodeConfig       // what pods may use of the node
	Log            *slog.Logger

	UpdateInterval time.Duration // between looks for newer images; 0 is never
	UpdateTimeout  time.Duration // for a pod to become ready with one
	MaxBackoff     time.Duration // of containers that keep exiting; 0 is podsync.DefaultMaxBackoff

	Endpoint string // what Connect connects to; recorded for the command line
	// Connect is called until it succeeds, or fails with an error of kind
	// fault.Invalid, which is final.
	Connect func(context.Context) (internalapi.RuntimeService, internalapi.ImageManagerService, error)
}

// Open makes an agent, which knows the pods of an earlier one on the same root but runs none before
// Run. Only one agent can be open on a root. The agent must be closed, and ctx end then.
func Open(ctx context.Context, o Options) (*Agent, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	lock, err := lockRoot(o.Root)
	if err != nil {
		return nil, err
	}
	events, err := status.OpenEvents(filepath.Join(o.Root, "events"), o.NodeName, status.DefaultMostEvents, o.Log)
	if err != nil {
		lock.close()
		return nil, err
	}
	a, err := newAgent(ctx, o, events)
	if err != nil {
		events.Close()
		lock.close()
		return nil, err
	}
	a.lock = lock
	a.shown.RuntimeChanged(criruntime.State{Reason: "RuntimeDoesNotAnswer", Message: "runtime at " + o.Endpoint + " has not answered yet"})
	return a, nil
}

func (a *Agent) Close() {
	a.Events.Close()
	a.lock.close()
}

// Run runs the agent until ctx, and that of Open, have ended, which is no error. An error means that the
// agent could not start. It runs pods as soon as the runtime has answered for the first time.
func (a *Agent) Run(ctx context.Context, e Embedding) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if e.Source != nil {
		a.source = e.Source
		a.Wanted.Expect(manifest.SourceAPI)
	}
	if e.Observer != nil {
		a.observer = e.Observer
	}
	go a.lock.watch(ctx, e.Sockets, a.o.Log)
	a.notifySystemd(ctx)
	defer sdnotify.Notify("STOPPING=1")
	return a.loop(ctx)
}

// Options returns the agent's options, with their defaults.
func (a *Agent) Options() Options { return a.o }

// CgroupDriver returns the kubelet's name of what makes the pods' cgroups; "" if nothing does.
func (a *Agent) CgroupDriver() string { return a.containers.CgroupDriver() }

type disk struct {
	files   *podfiles.Store
	ids     *node.IDPool
	pulled  *pull.Ledger
	plugins *pull.Plugins // nil: none
}

func openDisk(o *Options) (d disk, err error) {
	if d.pulled, err = pull.OpenLedger(o.Root, cmp.Or(o.PullPolicy, pull.NeverVerifyPreloaded), o.PullUnasked); err != nil {
		return d, err
	}
	if o.Plugins != "" {
		if d.plugins, err = pull.LoadPlugins(o.Plugins, o.PluginDir, o.Log); err != nil {
			return d, fault.Invalid.Errorf("%v", err)
		}
	}
	if d.files, err = podfiles.Open(podfiles.Options{Root: o.Root, LogDir: o.LogDir, LogLinks: o.LogLinks, Log: o.Log}); err != nil {
		return d, err
	}
	if err := podfiles.RecordAgent(o.Root, o.Endpoint, o.NodeName); err != nil { // the pods run without it
		o.Log.Warn("runtime and node not recorded", "err", err)
	}
	d.ids, err = node.OpenIDs(filepath.Join(o.Root, "pods"), o.Log)
	return d, err
}

// newAgent makes an agent of its parts, with what an earlier agent has left on disk. The
// runtime is not connected yet.
func newAgent(ctx context.Context, o Options, events *status.EventStore) (*Agent, error) {
	d, err := openDisk(&o)
	if err != nil {
		return nil, err
	}
	files := d.files

	// The wanted pods, and their state.
	wanted := source.NewManager(o.sources(), o.Expand)
	wanted.Resume(files.Accepted(), files.LoadStatus)
	going := func(pod *v1.Pod) bool { return files.Ending(pod.UID) }
	debug := source.OpenEphemeral(filepath.Join(o.Root, "ephemeral"), slices.DeleteFunc(files.Accepted(), going), wanted, o.Log)
	ips, runtime := node.NewAddresses(o.NodeIPs), criruntime.NewConnection(o.Log)
	self := node.New(o.NodeName, o.Version, ips.Get())
	o.Node.Describe(self, o.Root)
	shown := nodeConditions{Node: self, Wanted: wanted, Endpoint: o.Endpoint}
	h := nodeHost{Addresses: ips, Node: self, Readiness: criruntime.NewMonitor(runtime.Runtime(), shown, o.Log), Runtime: runtime}
	results := &probe.Results{}
	statuses := status.NewStore(h, files, results, o.Log)
	pods := node.NewPods(wanted, files, statuses)

	// The parts that act.
	containers := node.NewContainerManager(node.ContainerManagerOptions{
		NoPodCgroups: o.Node.NoPodCgroups, CgroupRoot: o.Node.CgroupRoot, PodPIDs: o.Node.PodPIDs, NoCPUQuota: o.NoCPUQuota, Reserved: o.Node.Reserved(),
		Node: self, Readiness: h.Readiness, Pods: pods, IDs: d.ids, Runtime: runtime.Runtime(),
	})
	watcher := pull.NewWatcher(o.Endpoint)
	context.AfterFunc(ctx, watcher.Close)
	driver := criruntime.New(criruntime.Options{
		Runtime: runtime.Runtime(), Images: runtime.Images(),
		Root: o.Root, Files: files, Host: h, ContainerManager: containers, Objects: wanted, Plugins: d.plugins, Pulled: d.pulled,
		ResolvConf: o.ResolvConf, ClusterDNS: o.ClusterDNS, ClusterDomain: o.ClusterDomain,
		SeccompDefault: o.SeccompDefault, NoCPUQuota: o.NoCPUQuota, LogLimit: crilog.Limit{Size: o.Node.Rules.LogSize, Files: o.Node.Rules.LogFiles}, Pulls: o.Pulls, MaxBackoff: o.MaxBackoff, Progress: watcher, Events: events, Log: o.Log,
	})
	lists := criruntime.NewPLEG(driver, o.Log)
	probes := probe.New(ctx, probe.Options{Ask: probe.Prober{Runtime: driver}, Statuses: statuses, Results: results, Events: events})
	updates := autoupdate.Open(filepath.Join(o.Root, "updates.json"), o.UpdateTimeout, o.Log)
	stops := worker.OpenStops(filepath.Join(o.Root, "stopped.json"), o.Log)
	w := worker.NewWorkers(worker.WorkersOptions{Events: events, Wanted: wanted, Node: self, Stopped: stops, Statuses: statuses, Log: o.Log})
	w.ShowDrain()
	keeper := housekeeping.New(housekeeping.Options{
		Rules: o.Node.Rules, NodeName: o.NodeName, Root: o.Root, LogDir: o.LogDir, LogLinks: o.LogLinks,
		Runtime: runtime.Runtime(), Images: runtime.Images(), Pulled: d.pulled, Updates: updates, Driver: driver,
		Pods: pods, Files: files, Workers: w, Cgroups: containers, Node: self, Events: events, Log: o.Log,
	})
	a := &Agent{
		Wanted: wanted, Files: files, Statuses: statuses, Events: events, Node: self, Runtime: runtime, Pulls: watcher,
		Lists: lists, Probes: probes, Volumes: driver.Volumes(), Workers: w, Ephemeral: debug,
		o: o, observer: unobserved{}, pods: pods, host: h, shown: shown, driver: driver, results: results, containers: containers, keeper: keeper, updates: updates, stopped: stops, renamed: make(chan struct{}, 1),
		shownIPs: ips.Get(), evicted: map[types.UID]*evicted{},
	}
	a.admission = newAdmitter(a, pods, keeper)
	return a, nil
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
		// The UIDs of pods have the node's name: another one would replace all pods.
		if first := podfiles.NodeName(o.Root); first != "" && first != o.NodeName {
			o.Log.Warn("host name has changed: the node keeps its first name (--node-name changes it)", "node", first, "host", o.NodeName)
			o.NodeName = first
		}
	}
	return nil
}
