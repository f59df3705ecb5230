package server

import (
	"context"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/crisp-cri/crisp/internal/logctx"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/cdi"
	"github.com/crisp-cri/crisp/server/nri"
	"github.com/crisp-cri/crisp/server/spec"
)

// evictGrace is the grace period of a container that a plugin evicts.
const evictGrace = 10 * time.Second

var _ nri.Runtime = (*pluginRuntime)(nil)

// pluginRuntime is the Server as nri.Runtime; the separate type keeps the methods for plugins
// out of the CRI method set.
type pluginRuntime struct{ *Server }

// newPlugins sets up NRI, if it is enabled.
func (s *Server) newPlugins() (*nri.Plugins, error) {
	if s.o.NRI == nil {
		return nil, nil
	}
	o := *s.o.NRI
	o.Version, o.Log, o.SwapLimit = s.o.Version, s.log, s.o.SpecHost.SwapLimit
	o.InjectCDI = func(built *specs.Spec, names []string) error {
		return cdi.Inject(built, s.current.Load().CDISpecDirs, names, spec.BindsNodes(built, s.o.SpecHost))
	}
	return nri.New(o, pluginRuntime{s})
}

// startPlugins lets plugins connect. They see containers that ended before as ended, and are not
// notified of those exits.
func (s *Server) startPlugins() error {
	if s.plugins == nil {
		return nil
	}
	for _, c := range s.runtime.Containers() {
		if done, mine := s.exits.claim(c); mine {
			close(done)
		}
	}
	return s.plugins.Start()
}

// Snapshot returns all pods and containers except those being created; plugins are notified of
// these later.
func (s pluginRuntime) Snapshot() ([]nri.Pod, []nri.Container) {
	var pods []nri.Pod
	for _, sb := range s.runtime.Sandboxes() {
		if st := sb.State(); st != oci.SandboxCreating && st != oci.SandboxRemoving {
			pods = append(pods, pluginPod(sb, s.index.sandbox(sb)))
		}
	}
	var containers []nri.Container
	for _, c := range s.runtime.Containers() {
		if c.Status().State != oci.Removing {
			containers = append(containers, s.pluginContainer(c))
		}
	}
	return pods, containers
}

// Update changes limits at a plugin's request.
func (s pluginRuntime) Update(ctx context.Context, updates []nri.Update) []nri.Update {
	return s.applyUpdates(ctx, updates)
}

// applyUpdates changes limits of containers and returns the updates that failed.
func (s *Server) applyUpdates(ctx context.Context, updates []nri.Update) (failed []nri.Update) {
	for _, u := range updates {
		err := s.applyUpdate(ctx, u)
		if err == nil {
			continue
		}
		failed = append(failed, u)
		if !u.IgnoreFailure {
			s.log.WarnContext(ctx, "update by a plugin not applied", "container", u.Container, "err", err)
		}
	}
	return failed
}

func (s *Server) applyUpdate(ctx context.Context, u nri.Update) error {
	c, err := s.runtime.Container(u.Container)
	if err != nil {
		return err
	}
	return s.tasks.alone(ctx, "update of container "+c.ID(), func(ctx context.Context) error {
		rec := *s.index.container(c)
		if change := limitsOf(u.Resources); change != nil {
			rec.resources = spec.MergeResources(rec.resources, change)
		}
		return s.index.applyContainer(ctx, c, oci.Change{Resources: u.Resources}, &rec)
	})
}

// Evict begins to stop a container. The kubelet sees the exit.
func (s pluginRuntime) Evict(_ context.Context, id, reason string) error {
	c, err := s.runtime.Container(id)
	if err != nil {
		return err
	}
	ctx := logctx.With(s.ctx, "container", c.ID())
	s.log.InfoContext(ctx, "container evicted by a plugin", "kind", reason)
	sig, ok := linuxSignal(s.index.container(c).signal)
	if !ok {
		sig = unix.SIGTERM
	}
	s.exits.startUnlessClosed(&s.work, func() {
		if err := c.Stop(ctx, sig, evictGrace); err != nil {
			s.log.WarnContext(ctx, "container not evicted", "err", err)
		}
	})
	return nil
}
