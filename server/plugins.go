package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/logctx"
	"github.com/crisp-cri/crisp/internal/undo"
	"github.com/crisp-cri/crisp/oci"
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
// Of what cannot be undone (a stop, a removal, anything "post") plugins are only notified; their
// errors are logged.

// pluginPod returns a sandbox as plugins see it: when it is stopped, its network namespace and
// addresses are gone.
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

// pluginContainer returns a container as plugins see it.
func (s *Server) pluginContainer(c *oci.Container) nri.Container {
	rec, st := s.index.container(c), c.Status()
	out := nri.Container{
		ID: c.ID(), PodID: c.SandboxID(), Config: rec.config, Spec: c.Config().Spec, ImageID: rec.imageID, ImageRef: rec.imageRef,
		Pid: st.Pid, CreatedAt: c.CreatedAt(), StartedAt: st.StartedAt, FinishedAt: st.FinishedAt,
		ExitCode: st.ExitCode, Reason: st.Reason, Message: st.Message,
	}
	switch containerState(st.State) {
	case cri.ContainerState_CONTAINER_CREATED:
		out.State = nri.Created
	case cri.ContainerState_CONTAINER_RUNNING:
		out.State = nri.Running
	case cri.ContainerState_CONTAINER_EXITED:
		out.State = nri.Stopped
	}
	return out
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

// notifyStop notifies plugins of a sandbox that is being stopped.
func (s *Server) notifyStop(ctx context.Context, sb *oci.Sandbox) {
	turn := s.plugins.Turn()
	defer turn.End()
	if turn.HasPlugins() {
		s.logPluginError(ctx, "StopPodSandbox", turn.StopPodSandbox(ctx, pluginPod(sb, s.index.sandbox(sb))))
	}
}

// notifyPodUpdate notifies plugins of new resources of a sandbox, before and after they
// are saved.
func (s *Server) notifyPodUpdate(ctx context.Context, p nri.Pod, save func() error) error {
	turn := s.plugins.Turn()
	defer turn.End()
	if !turn.HasPlugins() {
		return save()
	}
	if err := turn.UpdatePodSandbox(ctx, p); err != nil {
		return refused("update", err)
	}
	if err := save(); err != nil {
		return err
	}
	s.logPluginError(ctx, "PostUpdatePodSandbox", turn.PostUpdatePodSandbox(ctx, p))
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
		State: nri.Created, CreatedAt: time.Now(),
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

// notifyStart notifies plugins of a container about to start.
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

// notifyStarted notifies plugins of a container that has started.
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
	shut     bool                     // the server is closing; guarded by mu
}

// startUnlessClosed starts f as part of work, unless the server is closing: events and calls of
// plugins may arrive until the very end.
func (x *exits) startUnlessClosed(work *detached, f func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.shut {
		work.start(f)
	}
}

func (x *exits) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.shut = true
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
	s.exits.startUnlessClosed(&s.work, func() { s.notifyExit(logctx.With(s.ctx, "container", c.ID()), c) })
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
