// Package apiserver makes a cluster of one node of an agent (package agent), which it runs. The
// agent does not know it: they meet in agent.Embedding, in source.Expander, and in what may be asked
// of an agent.Agent.
//
//	kubectl, crisp ─▶ listen ─▶ kubectl ─▶ api ─▶ store ──────────▶ agent: a source of objects
//	                  browser ─▶ page ──────┘│     workload ───────▶ agent: pods of workloads
//	                                         │
//	                                         ├─ watchcache ◀─────── agent: what has changed
//	                                         ├─ startup ◀── why ─── agent: what pods wait for
//	                                         └────────────────────▶ agent: pods, node, events, stop, …
//
// Objects are files (store), not a database, and there is no admission, scheduler or user: whoever
// may use the socket is root. Controllers are pure functions (workload) that the agent calls.
package apiserver

import (
	"context"
	"crypto/rand"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent"
	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/crisp-cri/crisp/apiserver/kubectl"
	"github.com/crisp-cri/crisp/apiserver/listen"
	"github.com/crisp-cri/crisp/apiserver/page"
	"github.com/crisp-cri/crisp/apiserver/startup"
	"github.com/crisp-cri/crisp/apiserver/store"
	"github.com/crisp-cri/crisp/apiserver/workload"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/periodic"
	"github.com/crisp-cri/crisp/internal/podtrace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Options configure an agent with its API. It always serves the Unix socket, for root and the
// group "crisp".
type Options struct {
	agent.Options
	Socket   string  // path of the Unix socket; "" for <Root>/agent.sock
	Listen   string  // loopback address for kubectl, with the token in <Root>/token; <Root>/kubeconfig has both; "" for none
	ReadOnly string  // loopback address for the paths of a kubelet's read-only port; "" for none
	Health   string  // loopback address of the health checks; "" for none
	Page     bool    // a page for browsers at Listen, below /page/
	Tracing  Tracing // the collector of spans of pods' starts
}

// SocketOf returns the default path of the Unix socket of an agent with this root.
func SocketOf(root string) string { return filepath.Join(root, "agent.sock") }

// Run runs an agent and serves its API until ctx ends, which is no error. An error means that the
// agent could not start. The API is served from the start, before the runtime has answered.
func Run(ctx context.Context, o Options) error {
	if o.Page && (o.Listen == "" || strings.HasSuffix(o.Listen, ":0")) {
		return fault.Invalid.Errorf("agent: the page needs the address that it is served at (--listen), with its port")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	o.Expand = workload.Expand
	a, err := agent.Open(ctx, o.Options)
	if err != nil {
		return err
	}
	defer a.Close()
	o.Options = a.Options()
	traces, err := o.openTraces()
	if err != nil {
		return err
	}
	defer o.close(traces)
	objects, err := store.Open(filepath.Join(o.Root, "objects"), o.NodeName, a.Files, o.Log)
	if err != nil {
		return err
	}
	c := newCluster(o, a, objects, &startup.Keeper{Traces: traces})
	served, err := c.serve(ctx)
	if err != nil {
		return err
	}
	defer served.Close()
	go c.follow(ctx)
	go periodic.Run(ctx, again, func(context.Context) { c.clean() })
	crons := &cronJobs{cluster: c}
	go periodic.Run(ctx, time.Second, func(context.Context) { crons.run(time.Now()) })
	return a.Run(ctx, agent.Embedding{Source: objects, Observer: c, Sockets: served})
}

// A cluster is an agent with its API. It is the agent's observer.
type cluster struct {
	*startup.Keeper // the timelines of pods' starts
	o               Options
	agent           *agent.Agent
	objects         *store.Store
	api             *api.Server
}

func newCluster(o Options, a *agent.Agent, objects *store.Store, startups *startup.Keeper) *cluster {
	for _, pod := range a.Files.Accepted() {
		if !a.Files.Ending(pod.UID) {
			startups.Restore(pod.UID, a.Files.StartupPath(pod))
		}
	}
	return &cluster{startups, o, a, objects, api.New(api.Options{
		Wanted: a.Wanted, Store: objects, Events: a.Events, Node: a.Node,
		Runtime: a.Runtime, Metrics: a.Runtime.Counts, ProbeMetrics: a.Probes.Counts, Statuses: a.Statuses, Files: a.Files, Volumes: a.Volumes, Workers: a.Workers, Ephemeral: a.Ephemeral, Startup: startups,
		Loop: a, Lists: a.Lists, Config: configz{o, a}, Checkpoints: filepath.Join(o.Root, "checkpoints"), Log: o.Log,
	})}
}

// serve serves the API.
func (c *cluster) serve(ctx context.Context) (*listen.Server, error) {
	h := listen.Handlers{All: kubectl.New(c.api, c.objects, c.o.Version), Shown: c.api, Health: c.api.Health()}
	if c.o.Page {
		key, err := listen.Token(c.o.Root)
		if err != nil { // then the address is not served before there is a token
			key = rand.Text()
		}
		p := page.New(ctx, page.Options{API: c.api, Runtime: c.api, Pulls: c.agent.Pulls, Address: c.o.Listen, Key: key, Log: c.o.Log})
		h.All, h.Page = p.Opener(h.All), p
	}
	socket := c.o.Socket
	if socket == "" {
		socket = SocketOf(c.o.Root)
	}
	return listen.Begin(ctx, h, listen.Options{
		Root: c.o.Root, Socket: socket, Address: c.o.Listen, ReadOnly: c.o.ReadOnly, Health: c.o.Health, Log: c.o.Log,
	})
}

// Changed wakes the API's watchers, and saves the timeline of a pod whose files a worker has written.
func (c *cluster) Changed(pod *v1.Pod) {
	if pod != nil {
		if err := c.Save(pod, c.agent.Files.StartupPath(pod)); err != nil { // for diagnostics only
			c.o.Log.Debug("startup record not saved", "pod", podsync.KeyOf(pod).String(), "err", err)
		}
	}
	c.api.Poke()
}

// Ended removes the object of a deleted pod.
func (c *cluster) Ended(key podsync.Key, uid types.UID) {
	if err := c.objects.Ended(key.Namespace, key.Name, uid); err != nil {
		c.o.Log.Error("object of an ended pod not deleted", "pod", key.String(), "err", err)
	}
}

// follow wakes the API's watchers when there are events and changes of the node.
func (c *cluster) follow(ctx context.Context) {
	_, sub := c.agent.Events.Watch()
	defer sub.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.agent.Node.Changed():
		case _, ok := <-sub.C():
			if !ok { // the subscription ends when it overflows: subscribe again
				_, sub = c.agent.Events.Watch()
			}
		}
		c.api.Poke()
	}
}

// again is how often the cluster is cleaned.
const again = 2 * time.Second

// clean drops the timelines of pods that are gone altogether, and deletes ended jobs whose
// ttlSecondsAfterFinished have passed. Before the runtime has answered, the agent may not know how
// they ended.
func (c *cluster) clean() {
	if !c.agent.Runtime.Connected() {
		return
	}
	c.Keep(c.there)
	for _, o := range c.agent.Wanted.Expired() {
		c.remove(o)
	}
}

func (c *cluster) remove(job manifest.Object) {
	if _, err := c.objects.Delete(manifest.Key(job), job.GetUID(), nil, false); err != nil && !errors.Is(err, fault.NotFound) {
		c.o.Log.Error("expired job not deleted", "object", manifest.Key(job), "err", err)
	}
}

// there returns the pods that are wanted or have files.
func (c *cluster) there() map[types.UID]bool {
	there := map[types.UID]bool{}
	for _, pod := range append(c.agent.Wanted.Pods(), c.agent.Files.Accepted()...) {
		there[pod.UID] = true
	}
	return there
}

// Tracing configures the OpenTelemetry collector that gets the stages of pods' starts as spans.
// crispd sends its calls likewise: a pod's spans from both form one trace if both sample at the
// same rate.
type Tracing struct {
	Endpoint          string // host:port, an http or https URL, or unix:///path; "" for no tracing
	SamplesPerMillion int    // how many of a million pods are traced
}

// openTraces returns the sender of spans, nil without a collector.
func (o *Options) openTraces() (*podtrace.Sender, error) {
	if o.Tracing.Endpoint == "" {
		return nil, nil
	}
	return podtrace.New(podtrace.Options{
		Endpoint: o.Tracing.Endpoint, PerMillion: o.Tracing.SamplesPerMillion, Service: "crisp-agent", Version: o.Version, Log: o.Log,
	})
}

// close sends the last spans.
func (o *Options) close(traces *podtrace.Sender) {
	if err := traces.Close(); err != nil {
		o.Log.Warn("spans were not sent", "err", err)
	}
}
