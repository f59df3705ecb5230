// Package nri is the runtime's side of the Node Resource Interface: plugins that watch pods and
// containers and may change their configuration. The adaptation library implements the protocol,
// the order of the plugins and the merging of their adjustments; this package connects it to the
// server.
//
//	server ──Turn──▶ Plugins ──▶ adaptation ══socket══▶ plugin
//	   ▲                            │
//	   └──────── Runtime ◀──────────┘  Synchronize, unsolicited updates, evictions
//
// # Exactly once
//
// A plugin that joins receives all existing objects (Synchronize) and after that each change. So
// that it learns of every object once, notifying plugins of a change and making it visible
// happen within one Turn, during which no plugin can join:
//
//	Turn ─▶ CreateContainer hook ─▶ container on record ─▶ End
//	        ─────────────────── no Synchronize ──────────────
//
// A Turn must be short, and its holder must not begin another: a plugin that waits to join
// blocks new Turns, and with them creations, but nothing that only reads.
//
// # Without plugins
//
// Without a plugin a Turn is a read lock, HasPlugins is false, and nothing is converted. The
// first Turn after a plugin has disconnected notices that.
//
// # Trust
//
// A plugin that does not answer in time is dropped and the call continues, unless the plugin
// asked to be waited for (the library's FailurePolicy). If a plugin answers with an error, the
// creation, update or start fails and is rolled back. No plugin can prevent a pod from being
// stopped.
package nri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/containerd/ttrpc"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/crisp-cri/crisp/internal/regular"
	"github.com/crisp-cri/crisp/internal/unixsock"
)

// runtimeName is the name of the runtime that plugins receive.
const runtimeName = "crisp"

// The time limits for a plugin to register and synchronize, and for each request after that.
// They are the library's defaults, which plugins expect.
const (
	registrationTime = adaptation.DefaultPluginRegistrationTimeout
	requestTime      = adaptation.DefaultPluginRequestTimeout
)

// Options are the arguments of New.
type Options struct {
	Socket    string // where plugins connect; its directory is created
	PluginDir string // plugins in it are started; "" = none
	ConfigDir string // their configurations; "" = none
	Version   string // of crisp
	Log       *slog.Logger

	SwapLimit bool // the kernel limits swap
	// InjectCDI adds CDI devices by name.
	InjectCDI func(spec *specs.Spec, names []string) error
}

// A Runtime is what plugins read and change outside of our calls.
type Runtime interface {
	// Snapshot returns all existing pods and containers.
	Snapshot() ([]Pod, []Container)
	// Update changes the limits of containers, and returns the updates that
	// failed.
	Update(ctx context.Context, updates []Update) (failed []Update)
	// Evict begins to stop a container.
	Evict(ctx context.Context, id, reason string) error
}

// Plugins are the NRI plugins of this node. A nil *Plugins has none.
type Plugins struct {
	o       Options
	runtime Runtime
	nri     *adaptation.Adaptation
	count   atomic.Int32 // plugins that have joined and are not known to be gone
}

// New returns Plugins that do not listen yet.
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
	if unixsock.Answers(o.Socket) {
		// The library would take the socket away from that runtime.
		o.Log.Warn("another runtime serves the NRI socket: plugins cannot connect", "socket", o.Socket)
		options = append(options, adaptation.WithDisabledExternalConnections())
	}
	var err error
	if p.nri, err = adaptation.New(runtimeName, o.Version, p.synchronize, p.update, options...); err != nil {
		return nil, fmt.Errorf("set up NRI: %w", err)
	}
	lines.Store(o.Log) // not earlier: New complains that it was built without WebAssembly
	return p, nil
}

// Start starts the plugins of PluginDir and listens for others. It fails, and so does crispd,
// if the configuration of one is not a file, or if a plugin's name has no index: that is the
// library's decision, which keeps a node from running pods without its plugins.
func (p *Plugins) Start() error {
	if p == nil {
		return nil
	}
	if err := p.checkConfigs(); err != nil {
		return fmt.Errorf("start NRI: %w", err)
	}
	if err := p.nri.Start(); err != nil {
		return fmt.Errorf("start NRI: %w", err)
	}
	return nil
}

// checkConfigs returns an error if the library would wait for the configuration of a plugin.
func (p *Plugins) checkConfigs() error {
	entries, _ := os.ReadDir(p.o.PluginDir) // the library reports it
	for _, e := range entries {
		_, base, _ := strings.Cut(e.Name(), "-")
		for _, name := range []string{e.Name(), base} {
			if err := regular.CheckConfig(filepath.Join(p.o.ConfigDir, name+".conf")); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// Close stops listening and stops the plugins that Start started.
func (p *Plugins) Close() {
	if p != nil {
		p.nri.Stop()
		lines.CompareAndSwap(p.o.Log, nil)
	}
}

// synchronize sends all existing objects to joining plugins. The library ensures that there is
// no Turn, so this is the only request under way. Its time limit is that of a registration,
// because a plugin may have to examine a whole node's containers.
func (p *Plugins) synchronize(ctx context.Context, notify adaptation.SyncCB) error {
	adaptation.SetPluginRequestTimeout(registrationTime)
	defer adaptation.SetPluginRequestTimeout(requestTime)
	pods, containers := p.runtime.Snapshot()
	updates, err := notify(ctx, convert(pods, podOf), convert(containers, containerOf))
	if err != nil {
		return err
	}
	for _, u := range p.runtime.Update(ctx, updatesOf(updates)) {
		p.o.Log.WarnContext(ctx, "update by a plugin not applied", "container", u.Container)
	}
	return nil
}

// update applies the updates that a plugin requests on its own.
func (p *Plugins) update(ctx context.Context, list []*adaptation.ContainerUpdate) ([]*adaptation.ContainerUpdate, error) {
	failed := p.runtime.Update(ctx, updatesOf(list))
	return without(list, func(u *adaptation.ContainerUpdate) bool {
		return !slices.ContainsFunc(failed, func(f Update) bool { return f.Container == u.ContainerId })
	}), nil
}

// evictions wraps each call of a plugin: the library ignores the evictions in a plugin's request
// for updates.
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

// A counter receives the number of plugins; we ignore the library's other
// metrics.
type counter struct{ p *Plugins }

func (c counter) UpdatePluginCount(n int) { c.p.count.Store(int32(n)) }

func (counter) RecordPluginInvocation(string, string, error)      {}
func (counter) RecordPluginLatency(string, string, time.Duration) {}
func (counter) RecordPluginAdjustments(string, string, *adaptation.ContainerAdjustment, int, int) {
}

// lines receives the library's log; nil discards it. A process has only one.
var lines atomic.Pointer[slog.Logger]

var route = sync.OnceFunc(func() { nrilog.Set(logger{}) })

// A logger sends the library's log to slog. The messages are the library's own, with variables
// in them.
type logger struct{}

func (logger) line(ctx context.Context, level slog.Level, format string, args []any) {
	if log := lines.Load(); log != nil && log.Enabled(ctx, level) {
		log.Log(ctx, level, fmt.Sprintf("nri: "+format, args...))
	}
}

func (l logger) Debugf(ctx context.Context, format string, args ...any) {
	l.line(ctx, slog.LevelDebug, format, args)
}

// Infof logs at debug level: the library logs several lines for each connection at Info.
func (l logger) Infof(ctx context.Context, format string, args ...any) {
	l.line(ctx, slog.LevelDebug, format, args)
}

func (l logger) Warnf(ctx context.Context, format string, args ...any) {
	l.line(ctx, slog.LevelWarn, format, args)
}

func (l logger) Errorf(ctx context.Context, format string, args ...any) {
	l.line(ctx, slog.LevelError, format, args)
}
