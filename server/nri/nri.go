// Package nri is the runtime's side of the Node Resource Interface: plugins that
// watch pods and containers and have a say in what those get. The protocol, the
// order of the plugins and the merging of what they want are the adaptation
// library's; here is what lies between it and the server.
//
//	server ──Turn──▶ Plugins ──▶ adaptation ══socket══▶ plugin
//	   ▲                            │
//	   └──────── Runtime ◀──────────┘  Synchronize, unsolicited updates, evictions
//
// # Exactly once
//
// A plugin that joins is told of all there is (Synchronize) and after that of
// each change. So that it learns of every object once, telling of a change and
// making it visible happen within one Turn, during which no plugin can join:
//
//	Turn ─▶ CreateContainer hook ─▶ container on record ─▶ End
//	        ─────────────────── no Synchronize ──────────────
//
// A Turn must be short and must not be taken by who has one: a plugin that waits
// to join makes new Turns wait, and with them creations, but nothing that only
// reads.
//
// # Nobody there
//
// Without a plugin a Turn is a read lock, Heard is false, and nothing is
// converted. One that went away is noticed in the first Turn after that.
//
// # Trust
//
// A plugin that does not answer within its time is dropped and the call goes on,
// unless it asked to be waited for (the library's FailurePolicy). One that
// answers with an error fails the creation, the update or the start: what was
// done is undone. Nothing a plugin says keeps a pod from being stopped.
package nri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/ttrpc"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// runtimeName is what plugins are told they run in.
const runtimeName = "crisp"

// The time a plugin has: to register and be told of all there is, and for each
// request after that. They are the library's defaults, which plugins expect.
const (
	registrationTime = adaptation.DefaultPluginRegistrationTimeout
	requestTime      = adaptation.DefaultPluginRequestTimeout
)

// Options is what Plugins are made of.
type Options struct {
	Socket    string // where plugins connect; its directory is made
	PluginDir string // plugins in it are started; "" = none
	ConfigDir string // their configurations; "" = none
	Version   string // of crisp
	Log       *slog.Logger

	SwapLimit bool // the kernel limits swap
	// InjectCDI adds CDI devices by name.
	InjectCDI func(spec *specs.Spec, names []string) error
}

// A Runtime is what plugins look at and change outside of any call of ours.
type Runtime interface {
	// Snapshot returns all pods and containers that there are.
	Snapshot() ([]Pod, []Container)
	// Update changes the limits of containers, and returns what it could not.
	Update(ctx context.Context, updates []Update) (failed []Update)
	// Evict begins to stop a container.
	Evict(ctx context.Context, id, reason string) error
}

// Plugins are the NRI plugins of this node. A nil *Plugins has none.
type Plugins struct {
	o       Options
	runtime Runtime
	nri     *adaptation.Adaptation
	count   atomic.Int32 // of plugins that joined and have not been found gone
}

// New returns Plugins to which nobody can connect yet.
func New(o Options, runtime Runtime) (*Plugins, error) {
	p := &Plugins{o: o, runtime: runtime}
	route()
	options := []adaptation.Option{
		adaptation.WithSocketPath(o.Socket),
		adaptation.WithPluginPath(o.PluginDir),
		adaptation.WithPluginConfigPath(o.ConfigDir),
		adaptation.WithMetrics(counter{p}),
		adaptation.WithTTRPCOptions(nil, []ttrpc.ServerOpt{ttrpc.WithUnaryServerInterceptor(p.evictions)}),
	}
	if o.PluginDir == "" {
		options = append(options, adaptation.WithPluginPath("/nonexistent"))
	}
	if inUse(o.Socket) {
		// The library would take it away from them.
		o.Log.Warn("another runtime serves the NRI socket: plugins cannot connect", "socket", o.Socket)
		options = append(options, adaptation.WithDisabledExternalConnections())
	}
	var err error
	if p.nri, err = adaptation.New(runtimeName, o.Version, p.synchronize, p.update, options...); err != nil {
		return nil, fmt.Errorf("set up NRI: %w", err)
	}
	lines.Store(o.Log) // not before: New complains that it was built without WebAssembly
	return p, nil
}

// inUse reports whether somebody listens at a socket.
func inUse(path string) bool {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// Start starts the plugins of PluginDir and listens for others.
func (p *Plugins) Start() error {
	if p == nil {
		return nil
	}
	if err := p.nri.Start(); err != nil {
		return fmt.Errorf("start NRI: %w", err)
	}
	return nil
}

// Close stops listening and ends the plugins that Start started.
func (p *Plugins) Close() {
	if p != nil {
		p.nri.Stop()
		lines.CompareAndSwap(p.o.Log, nil)
	}
}

// synchronize tells plugins that join of all there is. The library makes sure
// that there is no Turn, so what follows is the only thing that plugins are
// asked: its time is that of a registration, because a plugin may have a node's
// worth of containers to look at.
func (p *Plugins) synchronize(ctx context.Context, tell adaptation.SyncCB) error {
	adaptation.SetPluginRequestTimeout(registrationTime)
	defer adaptation.SetPluginRequestTimeout(requestTime)
	pods, containers := p.runtime.Snapshot()
	updates, err := tell(ctx, podsOf(pods), containersOf(containers))
	if err != nil {
		return err
	}
	for _, u := range p.runtime.Update(ctx, updatesOf(updates)) {
		p.o.Log.WarnContext(ctx, "update by a plugin not applied", "container", u.Container)
	}
	return nil
}

// update applies what a plugin wants of its own accord.
func (p *Plugins) update(ctx context.Context, list []*adaptation.ContainerUpdate) ([]*adaptation.ContainerUpdate, error) {
	failed := map[string]bool{}
	for _, u := range p.runtime.Update(ctx, updatesOf(list)) {
		failed[u.Container] = true
	}
	var back []*adaptation.ContainerUpdate
	for _, u := range list {
		if failed[u.ContainerId] {
			back = append(back, u)
		}
	}
	return back, nil
}

// evictions is around each call of a plugin: the library reads no evictions out
// of the request for updates that they come with.
func (p *Plugins) evictions(ctx context.Context, unmarshal ttrpc.Unmarshaler, _ *ttrpc.UnaryServerInfo, method ttrpc.Method) (any, error) {
	var evict []*adaptation.ContainerEviction
	answer, err := method(ctx, func(v any) error {
		err := unmarshal(v)
		if req, ok := v.(*adaptation.UpdateContainersRequest); ok {
			evict = req.GetEvict()
		}
		return err
	})
	errs := []error{err}
	for _, e := range evict {
		if err := p.runtime.Evict(ctx, e.ContainerId, e.Reason); err != nil {
			errs = append(errs, fmt.Errorf("evict container %s: %w", e.ContainerId, err))
		}
	}
	return answer, errors.Join(errs...)
}

// A counter is told how many plugins there are; the rest of the library's
// metrics is not ours.
type counter struct{ p *Plugins }

func (c counter) UpdatePluginCount(n int) { c.p.count.Store(int32(n)) }

func (counter) RecordPluginInvocation(string, string, error)      {}
func (counter) RecordPluginLatency(string, string, time.Duration) {}
func (counter) RecordPluginAdjustments(string, string, *adaptation.ContainerAdjustment, int, int) {
}
