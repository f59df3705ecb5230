package nri

import (
	"context"

	"github.com/containerd/nri/pkg/adaptation"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// A Turn is a period in which no plugin can join, with the calls that notify plugins of its
// events. The zero Turn notifies no plugin.
type Turn struct {
	p     *Plugins
	block *adaptation.PluginSyncBlock
}

// Turn begins a Turn, which the caller must end. It waits while a plugin joins. The holder of a
// Turn must not begin another.
func (p *Plugins) Turn() Turn {
	if p == nil {
		return Turn{}
	}
	return Turn{p, p.nri.BlockPluginSync()}
}

// End ends the Turn. Ending it twice is no error.
func (t Turn) End() { t.block.Unblock() }

// HasPlugins reports whether there are plugins. The calls below require it to be true: without
// plugins nothing needs converting.
func (t Turn) HasPlugins() bool { return t.p != nil && t.p.count.Load() > 0 }

// RunPodSandbox notifies plugins of a pod that is about to be ready.
func (t Turn) RunPodSandbox(ctx context.Context, pod Pod) error {
	return t.p.nri.RunPodSandbox(ctx, &adaptation.RunPodSandboxRequest{Pod: podOf(pod)})
}

// UpdatePodSandbox notifies plugins of a pod's new resources, which it already has.
func (t Turn) UpdatePodSandbox(ctx context.Context, pod Pod) error {
	req := &adaptation.UpdatePodSandboxRequest{Pod: podOf(pod)}
	req.OverheadLinuxResources, req.LinuxResources = req.Pod.Linux.PodOverhead, req.Pod.Linux.PodResources
	_, err := t.p.nri.UpdatePodSandbox(ctx, req)
	return err
}

// PostUpdatePodSandbox notifies plugins of a pod that was updated.
func (t Turn) PostUpdatePodSandbox(ctx context.Context, pod Pod) error {
	return t.p.nri.PostUpdatePodSandbox(ctx, &adaptation.PostUpdatePodSandboxRequest{Pod: podOf(pod)})
}

// StopPodSandbox notifies plugins of a pod whose containers have ended.
func (t Turn) StopPodSandbox(ctx context.Context, pod Pod) error {
	return t.p.nri.StopPodSandbox(ctx, &adaptation.StopPodSandboxRequest{Pod: podOf(pod)})
}

// RemovePodSandbox notifies plugins of a pod that is gone.
func (t Turn) RemovePodSandbox(ctx context.Context, pod Pod) error {
	return t.p.nri.RemovePodSandbox(ctx, &adaptation.RemovePodSandboxRequest{Pod: podOf(pod)})
}

// CreateContainer asks plugins for adjustments of a container, applies them to its Spec, and
// returns the limits that plugins have set and the updates that they request for other
// containers.
func (t Turn) CreateContainer(ctx context.Context, pod Pod, c Container) (*specs.LinuxResources, []Update, error) {
	answer, err := t.p.nri.CreateContainer(ctx, &adaptation.CreateContainerRequest{Pod: podOf(pod), Container: containerOf(c)})
	if err != nil {
		return nil, nil, err
	}
	if err := t.p.adjust(c.Spec, answer.GetAdjust()); err != nil {
		return nil, nil, err
	}
	return answer.GetAdjust().GetLinux().GetResources().ToOCI(), updatesOf(answer.GetUpdate()), nil
}

// PostCreateContainer notifies plugins of a container that was created.
func (t Turn) PostCreateContainer(ctx context.Context, pod Pod, c Container) error {
	return t.p.nri.PostCreateContainer(ctx, &adaptation.PostCreateContainerRequest{Pod: podOf(pod), Container: containerOf(c)})
}

// StartContainer notifies plugins of a container about to start.
func (t Turn) StartContainer(ctx context.Context, pod Pod, c Container) error {
	return t.p.nri.StartContainer(ctx, &adaptation.StartContainerRequest{Pod: podOf(pod), Container: containerOf(c)})
}

// PostStartContainer notifies plugins of a container that was started.
func (t Turn) PostStartContainer(ctx context.Context, pod Pod, c Container) error {
	return t.p.nri.PostStartContainer(ctx, &adaptation.PostStartContainerRequest{Pod: podOf(pod), Container: containerOf(c)})
}

// UpdateContainer asks plugins to revise an update of c's limits. It returns the revised update,
// and the updates that they request for other containers.
func (t Turn) UpdateContainer(ctx context.Context, pod Pod, c Container, change *specs.LinuxResources) (own *specs.LinuxResources, others []Update, err error) {
	answer, err := t.p.nri.UpdateContainer(ctx, &adaptation.UpdateContainerRequest{
		Pod: podOf(pod), Container: containerOf(c), LinuxResources: resourcesOf(change),
	})
	if err != nil {
		return nil, nil, err
	}
	own = change
	for _, u := range updatesOf(answer.GetUpdate()) {
		if u.Container == c.ID {
			own = u.Resources
		} else {
			others = append(others, u)
		}
	}
	return own, others, nil
}

// PostUpdateContainer notifies plugins of a container that was updated.
func (t Turn) PostUpdateContainer(ctx context.Context, pod Pod, c Container) error {
	return t.p.nri.PostUpdateContainer(ctx, &adaptation.PostUpdateContainerRequest{Pod: podOf(pod), Container: containerOf(c)})
}

// StopContainer notifies plugins of a container that has ended, and returns the updates that
// they request for others.
func (t Turn) StopContainer(ctx context.Context, pod Pod, c Container) ([]Update, error) {
	answer, err := t.p.nri.StopContainer(ctx, &adaptation.StopContainerRequest{Pod: podOf(pod), Container: containerOf(c)})
	return updatesOf(answer.GetUpdate()), err
}

// RemoveContainer notifies plugins of a container that is gone.
func (t Turn) RemoveContainer(ctx context.Context, pod Pod, c Container) error {
	return t.p.nri.RemoveContainer(ctx, &adaptation.RemoveContainerRequest{Pod: podOf(pod), Container: containerOf(c)})
}
