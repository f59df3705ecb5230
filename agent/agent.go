// Package agent runs pods on one node without a cluster, from a directory of manifests, as the
// kubelet does for a cluster. It uses only CRI, so it runs on any runtime; of crispd it also
// reads the progress of pulls (pullwatch).
//
//	manifests ─▶ source ─▶ manifest ─▶ desired ─┐
//	             (watch)   (decode)    (merge)  │ which pods are wanted
//	                                            ▼
//	                                          worker   one goroutine for each pod:
//	                                            │      observe → compute → act
//	                    podsync (pure) ◀────────┤
//	                                            ▼
//	 pleg ◀── lists, events ── runtime ◀── CRI ── criruntime ◀── podspec (pure)
//	  │                           ▲             │
//	  │   readiness ── asks it ───┤             │
//	  │   probe ── exec ──────────┘             ▼
//	  └──▶ wake workers ◀── probe results     status   what is known of each pod
//
// Beside the workers, housekeeping looks after the node (evictions, images, logs), and api
// serves all of it where listen listens. This package makes the parts (newAgent), and its loop
// passes changes between them.
//
// The runtime and the labels of its sandboxes and containers are the ground truth. The agent may
// be killed at any moment: the next one observes, and finds by labels what its predecessor made.
// The runtime may be killed too: the agent waits for it without a limit and changes nothing
// meanwhile. When the agent ends, all containers keep running, unless Options.StopPods is set.
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
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"

	"github.com/crisp-cri/crisp/agent/admission"
	"github.com/crisp-cri/crisp/agent/containermanager"
	"github.com/crisp-cri/crisp/agent/criconn"
	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/ephemeral"
	"github.com/crisp-cri/crisp/agent/event"
	"github.com/crisp-cri/crisp/agent/host"
	"github.com/crisp-cri/crisp/agent/housekeeping"
	"github.com/crisp-cri/crisp/agent/idrange"
	"github.com/crisp-cri/crisp/agent/keyring"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/nodepods"
	"github.com/crisp-cri/crisp/agent/pleg"
	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/podworkers"
	"github.com/crisp-cri/crisp/agent/probe"
	"github.com/crisp-cri/crisp/agent/pullrecords"
	"github.com/crisp-cri/crisp/agent/pullwatch"
	"github.com/crisp-cri/crisp/agent/readiness"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/agent/stopped"
	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/crisp-cri/crisp/apiserver/startup"
	"github.com/crisp-cri/crisp/apiserver/store"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/podtrace"
	"github.com/crisp-cri/crisp/internal/sdnotify"
)

// Options configure an agent.
type Options struct {
	Manifests      string             // directory of the manifest files
	URL            string             // of one more manifest; "" is none
	URLHeader      http.Header        // of the requests for it
	Root           string             // the agent's own directory
	Serve          Serve              // where it serves its API
	LogDir         string             // directory of the agent's files
	NodeName       string             // "" is the host name
	NodeIPs        []netip.Addr       // nil: detected, and followed when they change
	ResolvConf     string             // of the node; "" gives pods the runtime's choice
	ClusterDNS     []string           // name servers for dnsPolicy ClusterFirst; without any, it means Default
	ClusterDomain  string             // suffix of the names of pods with a subdomain and, with ClusterDNS, of search domains
	SeccompDefault bool               // RuntimeDefault for containers that name no profile
	NoCPUQuota     bool               // CPU limits are not enforced
	Pulls          criruntime.Pulls   // limits of pulling images
	PullPolicy     pullrecords.Policy // which local images need credentials to use; "" is the kubelet's default
	PullUnasked    []string           // images that need none, by the policy NeverVerifyAllowlisted
	Plugins        string             // file with a CredentialProviderConfig; "" for none
	PluginDir      string             // of its programs
	LogLinks       string             // directory of links to the containers' logs; "" for none
	StopPods       bool               // stop the pods when the agent ends; else they keep running
	Node           host.Config        // what pods may use of the node
	Log            *slog.Logger

	Tracing Tracing          // the collector of spans of pods' starts
	traces  *podtrace.Sender // nil = none

	MaxBackoff time.Duration // of containers that keep exiting; 0 is podsync.DefaultMaxBackoff

	Endpoint string // what Connect connects to; recorded for the command line
	// Connect is called until it succeeds, or fails with an error of kind
	// fault.Invalid, which is final.
	Connect func(context.Context) (internalapi.RuntimeService, internalapi.ImageManagerService, error)
}

// Run runs the agent until ctx ends, which is no error. An error means that the
// agent could not start. It serves its API from the start, and runs pods as soon
// as the runtime has answered for the first time.
func Run(ctx context.Context, o Options) error {
	if err := o.complete(); err != nil {
		return err
	}
	lock, err := lockRoot(o.Root)
	if err != nil {
		return err
	}
	defer lock.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := event.Open(filepath.Join(o.Root, "events"), o.NodeName, event.DefaultMost, o.Log)
	if err != nil {
		return err
	}
	defer events.Close()
	if err := o.openTraces(); err != nil {
		return err
	}
	defer o.closeTraces()
	a, err := newAgent(ctx, o, events)
	if err != nil {
		return err
	}
	served, err := a.serve(ctx, events)
	if err != nil {
		return err
	}
	defer served.Close()
	go lock.watch(ctx, served, o.Log)
	a.notifySystemd(ctx)
	defer sdnotify.Notify("STOPPING=1")
	return a.loop(ctx)
}

// disk has the agent's stores on disk.
type disk struct {
	files   *podfiles.Store
	objects *store.Store
	ids     *idrange.Pool
	pulled  *pullrecords.Ledger
	plugins *keyring.Plugins // nil: none
}

func openDisk(o *Options) (d disk, err error) {
	if d.pulled, err = pullrecords.Open(o.Root, cmp.Or(o.PullPolicy, pullrecords.NeverVerifyPreloaded), o.PullUnasked); err != nil {
		return d, err
	}
	if o.Plugins != "" {
		if d.plugins, err = keyring.LoadPlugins(o.Plugins, o.PluginDir, o.Log); err != nil {
			return d, fault.Invalid.Errorf("%v", err)
		}
	}
	if d.files, err = podfiles.Open(podfiles.Options{Root: o.Root, LogDir: o.LogDir, LogLinks: o.LogLinks, Log: o.Log}); err != nil {
		return d, err
	}
	if err = podfiles.RecordEndpoint(o.Root, o.Endpoint); err != nil {
		return d, err
	}
	if d.ids, err = idrange.Open(filepath.Join(o.Root, "pods"), o.Log); err != nil {
		return d, err
	}
	d.objects, err = store.Open(filepath.Join(o.Root, "objects"), o.NodeName, d.files, o.Log)
	return d, err
}

// newAgent makes an agent of its parts, with what an earlier agent has left on disk. The
// runtime is not connected yet.
func newAgent(ctx context.Context, o Options, events *event.Store) (*agent, error) {
	d, err := openDisk(&o)
	if err != nil {
		return nil, err
	}
	files := d.files

	// The wanted pods, and their state.
	wanted := desired.New(o.sources())
	wanted.Resume(files.Accepted(), files.LoadStatus)
	going := func(pod *v1.Pod) bool { return files.Ending(pod.UID) }
	debug := ephemeral.Open(filepath.Join(o.Root, "ephemeral"), slices.DeleteFunc(files.Accepted(), going), wanted, o.Log)
	ips, runtime := node.NewAddresses(o.NodeIPs), criconn.New(o.Log)
	shown := host.Conditions{Node: node.New(o.NodeName, o.Serve.Version, ips.Get()), Wanted: wanted, Endpoint: o.Endpoint}
	o.Node.Describe(shown.Node, o.Root)
	h := host.Host{Addresses: ips, Node: shown.Node, Readiness: readiness.New(runtime.Runtime(), shown, o.Log), Runtime: runtime}
	results := &probe.Results{}
	statuses := status.NewStore(h, files, results, o.Log)
	pods := nodepods.New(wanted, files, statuses)

	// The parts that act.
	containers := containermanager.New(containermanager.Options{
		NoPodCgroups: o.Node.NoPodCgroups, CgroupRoot: o.Node.CgroupRoot, PodPIDs: o.Node.PodPIDs, NoCPUQuota: o.NoCPUQuota, Reserved: o.Node.Reserved(),
		Node: shown.Node, Readiness: h.Readiness, Pods: pods, IDs: d.ids, Runtime: runtime.Runtime(),
	})
	watcher := pullwatch.New(o.Endpoint)
	context.AfterFunc(ctx, watcher.Close)
	driver := criruntime.New(criruntime.Options{
		Runtime: runtime.Runtime(), Images: runtime.Images(),
		Root: o.Root, Files: files, Host: h, ContainerManager: containers, Objects: wanted, Plugins: d.plugins, Pulled: d.pulled,
		ResolvConf: o.ResolvConf, ClusterDNS: o.ClusterDNS, ClusterDomain: o.ClusterDomain,
		SeccompDefault: o.SeccompDefault, NoCPUQuota: o.NoCPUQuota, Pulls: o.Pulls, MaxBackoff: o.MaxBackoff, Progress: watcher, Events: events, Log: o.Log,
	})
	lists := pleg.New(driver, o.Log)
	probes := probe.New(ctx, probe.Options{Ask: probe.Prober{Runtime: driver}, Statuses: statuses, Results: results, Events: events})
	stops := stopped.Open(filepath.Join(o.Root, "stopped.json"), o.Log)
	w := podworkers.New(podworkers.Options{Events: events, Wanted: wanted, Node: shown.Node, Stopped: stops, Statuses: statuses, Log: o.Log})
	w.ShowDrain()
	keeper := housekeeping.New(housekeeping.Options{
		Rules: o.Node.Rules, NodeName: o.NodeName, Root: o.Root, LogDir: o.LogDir, LogLinks: o.LogLinks,
		Runtime: runtime.Runtime(), Images: runtime.Images(), Pulled: d.pulled, Driver: driver,
		Pods: pods, Files: files, Workers: w, Cgroups: containers, Node: shown.Node, Events: events, Log: o.Log,
	})
	alive, started := &heartbeat{}, &startup.Keeper{Traces: o.traces}
	for _, pod := range files.Accepted() {
		if !files.Ending(pod.UID) {
			started.Restore(pod.UID, files.StartupPath(pod))
		}
	}
	return &agent{
		o: o, files: files, pods: pods, host: h, conditions: shown, containers: containers, events: events, runtime: runtime, driver: driver, wanted: wanted, status: statuses,
		results: results, probes: probes, pleg: lists, store: d.objects, keeper: keeper, workers: w, stopped: stops, ephemeral: debug, heartbeat: alive, startup: started, pulls: watcher, shownIPs: ips.Get(),
		api: api.New(api.Options{
			Wanted: wanted, Store: d.objects, Events: events, Node: shown.Node,
			Runtime: runtime, Metrics: runtime.Counts, ProbeMetrics: probes.Counts, Statuses: statuses, Files: files, Volumes: driver.Volumes(), Workers: w, Ephemeral: debug, Startup: started,
			Loop: alive, Lists: lists, Config: configz{o, containers}, Checkpoints: filepath.Join(o.Root, "checkpoints"), Log: o.Log,
		}),
		admission: admission.New(admission.Options{
			NodeName: o.NodeName, UnsafeSysctls: o.Node.UnsafeSysctls, NoPrivileged: o.Node.NoPrivileged,
			Node: shown.Node, Readiness: h.Readiness, Pods: pods, Classes: wanted, Pressure: keeper, Workers: w, Events: events,
		}),
	}, nil
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
	if o.Serve.Page && (o.Serve.Listen == "" || strings.HasSuffix(o.Serve.Listen, ":0")) {
		return fault.Invalid.Errorf("agent: the page needs the address that it is served at (--listen), with its port")
	}
	if o.Serve.Socket == "" {
		o.Serve.Socket = SocketOf(o.Root)
	}
	return nil
}
