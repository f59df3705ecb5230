package status

import (
	"fmt"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type kind uint8

const (
	regularKind kind = iota
	initKind
	ephemeralKind
)

func (g *generator) containers(specs []v1.Container, old []v1.ContainerStatus, k kind) []v1.ContainerStatus {
	var list []v1.ContainerStatus
	for i := range specs {
		last := podsync.StatusOf(specs[i].Name, old)
		s := g.container(&specs[i], last, k)
		if k != ephemeralKind {
			g.probed(&s, &specs[i], last, k)
		}
		list = append(list, s)
	}
	return list
}

func (g *generator) container(spec *v1.Container, old *v1.ContainerStatus, k kind) v1.ContainerStatus {
	var s v1.ContainerStatus
	all := g.of(spec.Name)
	switch {
	case len(all) > 0:
		s = g.present(spec, old, all)
	case k != ephemeralKind && g.restarting && old != nil && old.State.Waiting == nil:
		s = reset(spec, old)
	default:
		s = g.absent(spec, old, k)
	}
	if s.VolumeMounts == nil {
		s.VolumeMounts = mounts(spec)
	}
	g.explain(&s, spec, all, k)
	return s
}

// present returns the status of a container that the runtime has. all are its attempts,
// newest first.
func (g *generator) present(spec *v1.Container, old *v1.ContainerStatus, all []podsync.Container) v1.ContainerStatus {
	c := all[0]
	s := v1.ContainerStatus{
		Name:         spec.Name,
		Image:        spec.Image,
		ImageID:      c.ImageID,
		ContainerID:  g.id(c),
		RestartCount: int32(c.Attempt),
		State:        g.state(c),
		Resources:    resources(spec, c, g.have.Actual[spec.Name]),
		User:         c.User,
	}
	if old != nil { // a container that never started may have been removed, whose attempt is used again
		s.RestartCount = max(s.RestartCount, old.RestartCount)
	}
	if c.Image != "" {
		s.Image = c.Image
	}
	if spec.Resources.Requests != nil {
		s.AllocatedResources = spec.Resources.Requests
	}
	switch {
	case len(all) > 1:
		s.LastTerminationState = g.state(all[1])
	case old == nil:
	case old.ContainerID != s.ContainerID && old.State.Terminated != nil:
		s.LastTerminationState.Terminated = old.State.Terminated
	default:
		s.LastTerminationState = old.LastTerminationState
	}
	return s
}

func (g *generator) state(c podsync.Container) v1.ContainerState {
	switch c.State {
	case podsync.Running:
		return v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.Time{Time: c.StartedAt}}}
	case podsync.Exited:
		return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
			ExitCode:    c.ExitCode,
			Reason:      c.Reason,
			Message:     c.Message,
			StartedAt:   metav1.Time{Time: c.StartedAt},
			FinishedAt:  metav1.Time{Time: c.FinishedAt},
			ContainerID: g.id(c),
		}}
	}
	return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{}}
}

// absent returns the status of a container that the runtime does not have, or no longer has.
func (g *generator) absent(spec *v1.Container, old *v1.ContainerStatus, k kind) v1.ContainerStatus {
	s := v1.ContainerStatus{Name: spec.Name, Image: spec.Image}
	s.State.Waiting = &v1.ContainerStateWaiting{Reason: "ContainerCreating"}
	switch {
	case len(g.have.Ending) > 0:
		s.State.Waiting = &v1.ContainerStateWaiting{Reason: "PredecessorTerminating", Message: "the pod that had this name before has not ended yet"}
	case len(g.pod.Spec.InitContainers) > 0:
		s.State.Waiting.Reason = "PodInitializing"
	}
	if k == initKind && !podsync.IsSidecar(spec) && g.begun() {
		// The container was removed, but it has succeeded: the regular ones have started.
		s.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
			Reason:  "Completed",
			Message: "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally",
		}}
	}
	switch {
	case old == nil:
	case old.State.Terminated != nil:
		return *old.DeepCopy()
	default:
		s.RestartCount, s.LastTerminationState = old.RestartCount, old.LastTerminationState
		if old.State.Running != nil && s.State.Waiting != nil {
			// The container ran, and how it ended is unknown. An earlier run does not show that.
			unknown := &v1.ContainerStateTerminated{
				Reason:   "ContainerStatusUnknown",
				Message:  "The container could not be located when the pod was deleted.  The container used to be Running",
				ExitCode: 137,
			}
			if k == ephemeralKind { // it does not start again
				s.State = v1.ContainerState{Terminated: unknown}
				return s
			}
			s.LastTerminationState.Terminated = unknown
			if g.pod.DeletionTimestamp == nil {
				s.RestartCount++
			}
		}
	}
	return s
}

// restartingAll is the kubelet's reason for containers that were removed so that all of the
// pod's containers start again.
const restartingAll = "RestartingAllContainers"

// reset returns the status of a container that was removed for that reason. It will start again,
// whatever its policy.
func reset(spec *v1.Container, old *v1.ContainerStatus) v1.ContainerStatus {
	const message = "The container is removed because RestartAllContainers in place"
	return v1.ContainerStatus{
		Name: spec.Name, Image: spec.Image, RestartCount: old.RestartCount + 1,
		State:                v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: restartingAll, Message: message}},
		LastTerminationState: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{Reason: restartingAll, Message: message, ExitCode: 137}},
	}
}

func (g *generator) begun() bool {
	return slices.ContainsFunc(g.pod.Spec.Containers, func(c v1.Container) bool {
		return slices.ContainsFunc(g.of(c.Name), func(c podsync.Container) bool { return c.State != podsync.Unknown })
	})
}

func (g *generator) explain(s *v1.ContainerStatus, spec *v1.Container, all []podsync.Container, k kind) {
	if g.ending() || s.State.Running != nil || g.restarting || g.have.Stop.On() {
		return
	}
	// Its end may be known only from the old status.
	if end := s.State.Terminated; end != nil {
		restarts := podsync.Restarts(&g.pod.Spec, spec, end.ExitCode)
		if k == initKind && !podsync.IsSidecar(spec) {
			restarts = podsync.RestartsInit(&g.pod.Spec, spec, end.ExitCode, end.Reason)
		}
		if k == ephemeralKind || !restarts {
			return
		}
	}
	why := g.waiting(spec, all)
	if why == nil {
		return
	}
	if s.State.Terminated != nil {
		s.LastTerminationState = s.State
	}
	s.State = v1.ContainerState{Waiting: why}
}

func (g *generator) waiting(spec *v1.Container, all []podsync.Container) *v1.ContainerStateWaiting {
	f, failed := g.have.Failures[podsync.ContainerSubject(spec.Name)]
	var crashed bool
	var backoff time.Duration
	if len(all) > 0 && all[0].State == podsync.Exited && !g.have.Stop.Interrupted(all[0].StartedAt, all[0].FinishedAt) {
		var at time.Time
		at, backoff = g.have.RestartAt(spec, all[0], g.now)
		crashed = at.After(g.now)
	}
	switch {
	case crashed && (!failed || f.Reason == "RunContainerError" || f.Reason == "PostStartHookError"):
		return &v1.ContainerStateWaiting{
			Reason: "CrashLoopBackOff",
			Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)",
				backoff, spec.Name, g.pod.Name, g.pod.Namespace, g.pod.UID),
		}
	case !failed:
		return nil
	}
	why := &v1.ContainerStateWaiting{Reason: f.Reason, Message: f.Message}
	switch f.Reason {
	case "ErrImagePull", "RegistryUnavailable", "SignatureValidationFailed":
		if f.Until.After(g.now) && g.now.Sub(f.At) >= podsync.PullErrorShown {
			why.Reason = "ImagePullBackOff"
			why.Message = fmt.Sprintf("Back-off pulling image %q: %s: %s", spec.Image, f.Reason, f.Message)
		}
	}
	return why
}

func (g *generator) probed(s *v1.ContainerStatus, spec *v1.Container, old *v1.ContainerStatus, k kind) {
	same := old != nil && old.ContainerID == s.ContainerID && s.ContainerID != ""
	var probes podsync.Probes
	if all := g.of(spec.Name); len(all) > 0 {
		probes = g.have.Probes[all[0].ID]
	}
	started := false
	switch {
	case s.State.Running == nil:
	case probes.Startup != podsync.Unknowable:
		started = probes.Startup == podsync.Success
	case same && old.Started != nil && *old.Started:
		started = true
	default:
		started = spec.StartupProbe == nil
	}
	s.Started = &started
	if k == initKind && !podsync.IsSidecar(spec) {
		end := s.State.Terminated
		s.Ready = end != nil && !podsync.InitFailed(end.ExitCode, end.Reason)
		return
	}
	switch {
	case !started:
		s.Ready = false
	case probes.Readiness != podsync.Unknowable:
		s.Ready = probes.Readiness == podsync.Success
	case spec.ReadinessProbe == nil:
		s.Ready = true
	default: // an earlier agent's probe may have found it ready
		s.Ready = same && old.Ready
	}
}

func mounts(spec *v1.Container) []v1.VolumeMountStatus {
	var list []v1.VolumeMountStatus
	for _, m := range spec.VolumeMounts {
		s := v1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			mode := v1.RecursiveReadOnlyDisabled
			if m.RecursiveReadOnly != nil && *m.RecursiveReadOnly != v1.RecursiveReadOnlyDisabled {
				mode = v1.RecursiveReadOnlyEnabled
			}
			s.RecursiveReadOnly = &mode
		}
		list = append(list, s)
	}
	return list
}

func resources(spec *v1.Container, c podsync.Container, actual v1.ResourceRequirements) *v1.ResourceRequirements {
	r := spec.Resources.DeepCopy()
	if c.State != podsync.Running {
		return r
	}
	// The kernel rounds small amounts of CPU up to least, in thousandths. Such amounts are
	// shown as in the spec.
	merge := func(into, from v1.ResourceList, name v1.ResourceName, least int64) {
		q, ok := from[name]
		asked := into[name]
		if ok && into != nil && (q.MilliValue() > least || asked.MilliValue() > least) {
			into[name] = q.DeepCopy()
		}
	}
	if c.Resources != nil {
		merge(r.Limits, c.Resources.Limits, v1.ResourceCPU, leastCPULimit)
		merge(r.Limits, c.Resources.Limits, v1.ResourceMemory, 0)
		merge(r.Requests, c.Resources.Requests, v1.ResourceCPU, leastCPURequest)
	}
	merge(r.Requests, actual.Requests, v1.ResourceMemory, 0)
	return r
}

const (
	leastCPULimit   = 10 // a quota of 1 ms in each 100 ms
	leastCPURequest = 2  // 2 shares
)
