package crix

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Act does one action, as worker.Runtime says.
func (d *Driver) Act(ctx, interrupt context.Context, pod *v1.Pod, a podsync.Action) error {
	switch a.Verb {
	case podsync.StopContainer:
		return gone(d.runtime.StopContainer(ctx, a.ID, int64(a.Grace/time.Second)))
	case podsync.RemoveContainer:
		return gone(d.runtime.RemoveContainer(ctx, a.ID))
	case podsync.StopSandbox:
		return gone(d.runtime.StopPodSandbox(ctx, a.ID))
	case podsync.RemoveSandbox:
		return gone(d.runtime.RemovePodSandbox(ctx, a.ID))
	case podsync.ForgetFiles:
		return d.forgetFiles(a.UID)
	case podsync.RunSandbox:
		return d.runSandbox(ctx, pod, a)
	case podsync.StartContainer:
		return d.startContainer(ctx, interrupt, pod, a)
	}
	return fmt.Errorf("no such action: %d", a.Verb)
}

// gone takes for done what was to be ended and does not exist.
func gone(err error) error {
	if err = Fault(err); errors.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// runSandbox prepares the pod's files and runs its sandbox.
func (d *Driver) runSandbox(ctx context.Context, pod *v1.Pod, a podsync.Action) error {
	if err := d.makeFiles(pod); err != nil {
		return reasoned("FailedMount", fmt.Errorf("pod %s: %w", podsync.KeyOf(pod), err))
	}
	if err := d.ready(ctx, pod.Spec.HostNetwork); err != nil {
		return err
	}
	config, err := d.sandboxConfig(pod, a.Attempt)
	if err != nil {
		return reasoned("FailedCreatePodSandBox", err)
	}
	if _, err := d.runtime.RunPodSandbox(ctx, config, ""); err != nil {
		return reasoned("FailedCreatePodSandBox", Fault(err))
	}
	return nil
}

// ready asks whether the runtime can run a sandbox now. It is asked before each
// and not polled: while nothing is to be started, nobody needs to know.
func (d *Driver) ready(ctx context.Context, hostNetwork bool) error {
	resp, err := d.runtime.Status(ctx, false)
	if err != nil {
		return Fault(err)
	}
	for _, c := range resp.GetStatus().GetConditions() {
		switch {
		case c.Status:
		case c.Type == cri.RuntimeReady:
			return reasoned("RuntimeNotReady", fmt.Errorf("runtime is not ready: %s: %s", c.Reason, c.Message))
		case c.Type == cri.NetworkReady && !hostNetwork:
			return reasoned("NetworkNotReady", fmt.Errorf("network is not ready: %s: %s", c.Reason, c.Message))
		}
	}
	return nil
}

// startContainer brings the image, creates the container and starts it. One that
// was created and did not start stays, for its message; the next plan goes on
// from there.
func (d *Driver) startContainer(ctx, interrupt context.Context, pod *v1.Pod, a podsync.Action) error {
	c := containerOf(pod, a.Name)
	if c == nil {
		return fmt.Errorf("pod %s has no container %s", podsync.KeyOf(pod), a.Name)
	}
	sandbox, err := d.sandboxConfig(pod, 0)
	if err != nil {
		return reasoned("CreateContainerConfigError", err)
	}
	status, err := d.runtime.PodSandboxStatus(ctx, a.SandboxID, false)
	if err != nil {
		return Fault(err)
	}
	sandbox.Metadata.Attempt = status.GetStatus().GetMetadata().GetAttempt()
	image, err := d.ensureImage(ctx, interrupt, c, sandbox)
	if err != nil {
		return err
	}
	config, err := d.containerConfig(pod, c, a, image, IPs(status.GetStatus()))
	if err != nil {
		return reasoned("CreateContainerConfigError", err)
	}
	id, err := d.runtime.CreateContainer(ctx, a.SandboxID, config, sandbox)
	if err != nil {
		return reasoned("CreateContainerError", Fault(err))
	}
	if err := d.runtime.StartContainer(ctx, id); err != nil {
		return reasoned("RunContainerError", Fault(err))
	}
	return nil
}

func containerOf(pod *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
