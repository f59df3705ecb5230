package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/logctx"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/cdi"
	"github.com/crisp-cri/crisp/server/nri"
	"github.com/crisp-cri/crisp/server/spec"
)

// This file notifies NRI plugins, at these points:
//
//	RunPodSandbox     before the sandbox is ready; an error undoes it
//	StopPodSandbox    when its containers have ended and its network still exists
//	RemovePodSandbox  when it is gone
//	CreateContainer   before the container is on record; an error undoes it
//	StartContainer    before; an error leaves the container as it was
//	UpdateContainer   before; an error leaves the limits as they were
//	StopContainer     when it has ended for any reason, once
//	RemoveContainer   when it is gone
//
// Plugins cannot veto a stop, a removal or a "post" event: they are notified, and their errors are
// logged.

// pluginPod returns a sandbox as plugins see it. When it is stopped, its network namespace is gone.
// The addresses stay, as in containerd: by them a plugin knows what to forget.
func pluginPod(sb *oci.Sandbox, rec *sandboxRecord) nri.Pod {
	p := nri.Pod{ID: sb.ID(), Config: rec.config, Handler: rec.handler, IPs: rec.ips}
	if sb.State() < oci.SandboxNotReady {
		p.NetNS = sb.NetNS()
	}
	if r := rec.resources; r != nil {
		p.Overhead, p.Resources = r.Overhead, r.Resources
	}
	return p
}

// podOf returns the pod of a container; a pod whose record was lost has only its ID.
func (s *Server) podOf(c *oci.Container) nri.Pod {
	sb, err := s.runtime.Sandbox(c.SandboxID())
	if err != nil {
		return nri.Pod{ID: c.SandboxID()}
	}
	return pluginPod(sb, s.index.sandbox(sb))
}

func (s *Server) pluginContainer(c *oci.Container) nri.Container {
	rec, st := s.index.container(c), c.Status()
	return nri.Container{
		ID: c.ID(), PodID: c.SandboxID(), Config: rec.config, Spec: c.Config().Spec, ImageID: rec.imageID, ImageRef: rec.imageRef,
		State: containerState(st.State), Pid: st.Pid, CreatedAt: c.CreatedAt(), StartedAt: st.StartedAt, FinishedAt: st.FinishedAt,
		ExitCode: st.ExitCode, Reason: st.Reason, Message: st.Message,
	}
}

// logPluginError logs a plugin's objection to what cannot be undone.
func (s *Server) logPluginError(ctx context.Context, what string, err error) {
	if err != nil {
		s.log.WarnContext(ctx, "plugin refused what cannot be undone", "kind", what, "err", err)
	}
}

// refused returns the error for an operation that plugins refuse. It is not an internal error,
// and a retry may succeed. The plugin's status code does not reach the kubelet, which acts on
// NotFound.
func refused(what string, err error) error {
	if fault.KindOf(err) != fault.Internal {
		return fmt.Errorf("%s by plugins: %w", what, err)
	}
	return fault.Unavailable.Errorf("%s by plugins: %v", what, err)
}

// notifyRun notifies plugins of a sandbox before it is ready, and adds to steps the notification
// of its end, in case the sandbox fails afterwards.
func (s *Server) notifyRun(ctx context.Context, turn nri.Turn, p nri.Pod, steps *undo.Stack) error {
	if !turn.HasPlugins() {
		return nil
	}
	// Also if the hook fails, as the plugins before the one that refused were
	// notified.
	steps.AddContext(ctx, "run by plugins", func(ctx context.Context) error {
		turn := s.plugins.Turn()
		defer turn.End()
		if turn.HasPlugins() {
			s.logPluginError(ctx, "StopPodSandbox", turn.StopPodSandbox(ctx, p))
			s.logPluginError(ctx, "RemovePodSandbox", turn.RemovePodSandbox(ctx, p))
		}
		return nil
	})
	if err := turn.RunPodSandbox(ctx, p); err != nil {
		return refused("run", err)
	}
	return nil
}

func (s *Server) notifyStop(ctx context.Context, sb *oci.Sandbox) {
	turn := s.plugins.Turn()
	defer turn.End()
	if turn.HasPlugins() {
		s.logPluginError(ctx, "StopPodSandbox", turn.StopPodSandbox(ctx, pluginPod(sb, s.index.sandbox(sb))))
	}
}

// notifyPodUpdate notifies plugins of new resources of a sandbox, before and after it records
// them.
func (s *Server) notifyPodUpdate(ctx context.Context, sb *oci.Sandbox, resources *cri.UpdatePodSandboxResourcesRequest) error {
	change := func(r *sandboxRecord) { r.resources = resources }
	turn := s.plugins.Turn()
	defer turn.End()
	if !turn.HasPlugins() {
		return s.index.editSandbox(sb, change)
	}
	rec := *s.index.sandbox(sb)
	change(&rec)
	if err := turn.UpdatePodSandbox(ctx, pluginPod(sb, &rec)); err != nil {
		return refused("update", err)
	}
	if err := s.index.editSandbox(sb, change); err != nil {
		return err
	}
	s.logPluginError(ctx, "PostUpdatePodSandbox", turn.PostUpdatePodSandbox(ctx, pluginPod(sb, s.index.sandbox(sb))))
	return nil
}

// notifyCreate lets plugins change the specification of a container being created. If the
// container fails afterwards, its undo notifies them. The turn lasts until the container is on
// record: a plugin that joined earlier would never be notified of it.
func (d *containerDraft) notifyCreate(ctx context.Context) error {
	d.turn = d.s.plugins.Turn()
	if !d.turn.HasPlugins() {
		return nil
	}
	s := d.s
	p := pluginPod(d.sb, s.index.sandbox(d.sb))
	c := nri.Container{
		ID: d.cr.id, PodID: d.sb.ID(), Config: d.config, Spec: d.spec, ImageID: d.image.ID, ImageRef: d.record.imageRef,
		State: cri.ContainerState_CONTAINER_CREATED, CreatedAt: time.Now(),
	}
	d.undo.AddContext(ctx, "creation by plugins", func(ctx context.Context) error {
		turn := s.plugins.Turn()
		defer turn.End()
		if turn.HasPlugins() {
			updates, err := turn.StopContainer(ctx, p, c)
			s.logPluginError(ctx, "StopContainer", err)
			s.applyUpdates(ctx, updates)
			s.logPluginError(ctx, "RemoveContainer", turn.RemoveContainer(ctx, p, c))
		}
		return nil
	})
	limits, updates, err := d.turn.CreateContainer(ctx, p, c)
	if err != nil {
		return refused("creation", err)
	}
	if change := limitsOf(limits); change != nil {
		d.record.resources = spec.MergeResources(d.record.resources, change)
	}
	return unapplied(s.applyUpdates(ctx, updates))
}

// notifyCreated notifies plugins of a container that is on record.
func (s *Server) notifyCreated(ctx context.Context, turn nri.Turn, c *oci.Container) {
	if turn.HasPlugins() {
		s.logPluginError(ctx, "PostCreateContainer", turn.PostCreateContainer(ctx, s.podOf(c), s.pluginContainer(c)))
	}
}

func (s *Server) notifyStart(ctx context.Context, c *oci.Container) error {
	turn := s.plugins.Turn()
	defer turn.End()
	if !turn.HasPlugins() || c.Status().State != oci.Created {
		return nil // Start reports what is wrong
	}
	if err := turn.StartContainer(ctx, s.podOf(c), s.pluginContainer(c)); err != nil {
		return refused("start", err)
	}
	return nil
}

func (s *Server) notifyStarted(ctx context.Context, c *oci.Container) {
	turn := s.plugins.Turn()
	defer turn.End()
	if turn.HasPlugins() {
		s.logPluginError(ctx, "PostStartContainer", turn.PostStartContainer(ctx, s.podOf(c), s.pluginContainer(c)))
	}
}

// notifyUpdate lets plugins change an update. It returns the changed update, and a function to
// call when it is done, which notifies them.
func (s *Server) notifyUpdate(ctx context.Context, c *oci.Container, change *cri.LinuxContainerResources) (*cri.LinuxContainerResources, func(), error) {
	turn := s.plugins.Turn()
	defer turn.End()
	if !turn.HasPlugins() {
		return change, func() {}, nil
	}
	asked, err := spec.Resources(change, s.o.SpecHost)
	if err != nil {
		return nil, nil, err
	}
	if asked.Memory != nil && change.MemorySwapLimitInBytes == 0 {
		asked.Memory.Swap = nil // the request leaves it as it is, and so does a plugin that agrees
	}
	own, others, err := turn.UpdateContainer(ctx, s.podOf(c), s.pluginContainer(c), asked)
	if err != nil {
		return nil, nil, refused("update", err)
	}
	if err := unapplied(s.applyUpdates(ctx, others)); err != nil {
		return nil, nil, err
	}
	return spec.MergeResources(change, limitsOf(own)), func() {
		turn := s.plugins.Turn()
		defer turn.End()
		if turn.HasPlugins() {
			s.logPluginError(ctx, "PostUpdateContainer", turn.PostUpdateContainer(ctx, s.podOf(c), s.pluginContainer(c)))
		}
	}, nil
}

// An exits is the set of containers, by ID, of whose exit plugins were notified or are being
// notified. The first to claim an exit sends the notification: the handler of the exit's event,
// or a call that must not return earlier.
type exits struct {
	mu       sync.Mutex
	notified map[string]chan struct{} // closed when plugins are notified; guarded by mu
}

// claim returns a channel that is closed when plugins have been notified of the exit of c, and
// whether the caller must notify them; nil if there is no exit to report.
func (x *exits) claim(c *oci.Container) (done chan struct{}, mine bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	id := c.ID()
	if done, ok := x.notified[id]; ok {
		return done, false
	}
	if c.Status().State != oci.Exited {
		return nil, false // not started, not ended, or being removed after plugins were notified
	}
	if x.notified == nil {
		x.notified = map[string]chan struct{}{}
	}
	done = make(chan struct{})
	x.notified[id] = done
	return done, true
}

func (x *exits) forget(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.notified, id)
}

// notifyExit notifies plugins of the exit of a container, once, and returns when they have been
// notified.
func (s *Server) notifyExit(ctx context.Context, c *oci.Container) {
	if s.plugins == nil {
		return
	}
	done, mine := s.exits.claim(c)
	if done == nil {
		return
	}
	if !mine {
		select {
		case <-done:
		case <-ctx.Done():
		}
		return
	}
	defer close(done)
	ctx = context.WithoutCancel(ctx) // no later call will notify them
	turn := s.plugins.Turn()
	defer turn.End()
	if !turn.HasPlugins() {
		return
	}
	updates, err := turn.StopContainer(ctx, s.podOf(c), s.pluginContainer(c))
	s.logPluginError(ctx, "StopContainer", err)
	s.logPluginError(ctx, "StopContainer", unapplied(s.applyUpdates(ctx, updates)))
}

// exited is notifyExit for the exit's event, for which no caller waits.
func (s *Server) exited(c *oci.Container) {
	if s.plugins == nil {
		return
	}
	s.work.start(func() { s.notifyExit(logctx.With(s.ctx, "container", c.ID()), c) })
}

// removeAndNotify removes a container and notifies plugins that it is gone.
func (s *Server) removeAndNotify(ctx context.Context, c *oci.Container) error {
	turn := s.plugins.Turn()
	defer turn.End()
	if !turn.HasPlugins() {
		return c.Remove(ctx)
	}
	p, gone := s.podOf(c), s.pluginContainer(c)
	if err := c.Remove(ctx); err != nil {
		return err
	}
	s.logPluginError(ctx, "RemoveContainer", turn.RemoveContainer(ctx, p, gone))
	return nil
}

// removePodAndNotify is removeAndNotify for a sandbox.
func (s *Server) removePodAndNotify(ctx context.Context, sb *oci.Sandbox) (err error) {
	defer func() {
		if err == nil {
			s.o.SELinux.Release(sb.ID())
		}
	}()
	turn := s.plugins.Turn()
	defer turn.End()
	if !turn.HasPlugins() {
		return sb.Remove(ctx)
	}
	gone := pluginPod(sb, s.index.sandbox(sb))
	if err := sb.Remove(ctx); err != nil {
		return err
	}
	s.logPluginError(ctx, "RemovePodSandbox", turn.RemovePodSandbox(ctx, gone))
	return nil
}

// unapplied returns the error for failed updates that a plugin requires.
func unapplied(failed []nri.Update) error {
	for _, u := range failed {
		if !u.IgnoreFailure {
			return fault.Unavailable.Errorf("update of container %s by a plugin could not be applied", u.Container)
		}
	}
	return nil
}

// limitsOf returns those of OCI's resources that CRI has fields for; nil if r is.
func limitsOf(r *specs.LinuxResources) *cri.LinuxContainerResources {
	if r == nil {
		return nil
	}
	out := &cri.LinuxContainerResources{Unified: r.Unified}
	if m := r.Memory; m != nil {
		out.MemoryLimitInBytes, out.MemorySwapLimitInBytes = ptr.Deref(m.Limit, 0), ptr.Deref(m.Swap, 0)
	}
	if c := r.CPU; c != nil {
		out.CpuQuota, out.CpuPeriod = ptr.Deref(c.Quota, 0), int64(ptr.Deref(c.Period, 0))
		out.CpuShares = int64(ptr.Deref(c.Shares, 0))
		out.CpusetCpus, out.CpusetMems = c.Cpus, c.Mems
	}
	for _, l := range r.HugepageLimits {
		out.HugepageLimits = append(out.HugepageLimits, &cri.HugepageLimit{PageSize: l.Pagesize, Limit: l.Limit})
	}
	if proto.Size(out) == 0 {
		return nil
	}
	return out
}

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
			p := pluginPod(sb, s.index.sandbox(sb))
			p.IPs = s.index.sandbox(sb).addresses() // a plugin that joins would take others' addresses for this pod's
			pods = append(pods, p)
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
	s.work.start(func() {
		if err := c.Stop(ctx, sig, evictGrace); err != nil {
			s.log.WarnContext(ctx, "container not evicted", "err", err)
		}
	})
	return nil
}
