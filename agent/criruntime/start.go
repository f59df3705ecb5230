package criruntime

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/stage"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// startContainer pulls the image, creates the container, starts it and runs its hook. A
// container that was created and did not start stays, for its message; the next plan continues
// from there.
func (d *Driver) startContainer(ctx, interrupt context.Context, pod *v1.Pod, a podsync.Action) error {
	c := podsync.ContainerOf(&pod.Spec, a.Name)
	if c == nil {
		return fmt.Errorf("pod %s has no container %s", podsync.KeyOf(pod), a.Name)
	}
	fail := func(reason string, err error) error {
		d.events.record(pod, c.Name, "", v1.EventTypeWarning, "Failed", "Error: "+err.Error())
		return Reasoned(reason, err)
	}
	if err := d.prepare(ctx, pod); err != nil {
		return fail(reasonOf(err), err)
	}
	status, err := d.runtime.PodSandboxStatus(ctx, a.SandboxID, false)
	if err != nil {
		return Fault(err)
	}
	in, err := d.input(pod)
	if err != nil {
		return fail("CreateContainerConfigError", err)
	}
	sandbox, _, err := in.Sandbox(status.GetStatus().GetMetadata().GetAttempt())
	if err != nil {
		return fail("CreateContainerConfigError", err)
	}
	stage.Next(ctx, "image")
	ref, image, err := d.puller.ensure(ctx, interrupt, pod, c, sandbox)
	if err != nil {
		if interrupt.Err() == nil {
			d.events.record(pod, c.Name, "", v1.EventTypeWarning, "Failed", "Error: "+reasonOf(err))
		}
		return err
	}
	mounted, err := d.imageVolumes(ctx, interrupt, pod, c, sandbox)
	if err != nil {
		return err
	}
	stage.Next(ctx, "configuration")
	in.IPs = IPs(status.GetStatus())
	if pod.Spec.HostNetwork {
		in.IPs = d.o.Host.IPs()
	}
	config, err := d.containerConfig(in, &podspec.Container{
		Spec: c, Attempt: a.Attempt, Backoff: a.Backoff, Target: a.Target, Image: image, ImageRef: ref,
	}, mounted)
	if err != nil {
		return fail("CreateContainerConfigError", err)
	}
	if err := os.MkdirAll(filepath.Join(sandbox.LogDirectory, c.Name), 0o755); err != nil {
		return fail("CreateContainerConfigError", err)
	}
	if err := d.resizeForStart(ctx, pod, c, a.SandboxID); err != nil {
		return fail("ResizeError", err)
	}
	if err := d.files.SetActual(string(pod.UID), c.Name, c.Resources); err != nil {
		return fail("CreateContainerConfigError", err)
	}
	return d.createAndStart(ctx, interrupt, pod, c, a, config, sandbox)
}

// createAndStart creates and starts the container and runs its hook.
func (d *Driver) createAndStart(ctx, interrupt context.Context, pod *v1.Pod, c *v1.Container, a podsync.Action, config *cri.ContainerConfig, sandbox *cri.PodSandboxConfig) error {
	stage.Next(ctx, "create")
	id, err := d.runtime.CreateContainer(ctx, a.SandboxID, config, sandbox)
	if err = Fault(err); err != nil {
		d.events.record(pod, c.Name, id, v1.EventTypeWarning, "Failed", "Error: "+err.Error())
		return Reasoned("CreateContainerError", err)
	}
	d.events.record(pod, c.Name, id, v1.EventTypeNormal, "Created", "Container created")
	stage.Next(ctx, "start")
	if err := Fault(d.runtime.StartContainer(ctx, id)); err != nil {
		d.events.record(pod, c.Name, id, v1.EventTypeWarning, "Failed", "Error: "+err.Error())
		return Reasoned("RunContainerError", err)
	}
	d.events.record(pod, c.Name, id, v1.EventTypeNormal, "Started", "Container started")
	if err := d.files.LinkLog(pod, c.Name, id, filepath.Join(sandbox.LogDirectory, config.LogPath)); err != nil {
		d.o.Log.WarnContext(ctx, "log not linked", "container", c.Name, "err", err)
	}
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	stage.Next(ctx, "postStart hook")
	err = d.hook(interrupt, pod, c, id, c.Lifecycle.PostStart)
	if err == nil || interrupt.Err() != nil {
		return nil // in the latter case the container is about to be stopped
	}
	// Neither an event nor a status has the hook's output: it may be secret.
	d.o.Log.WarnContext(ctx, "postStart hook failed", "container", c.Name, "err", err)
	d.events.record(pod, c.Name, id, v1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
	now := make(chan struct{})
	close(now)
	kill := podsync.Action{Verb: podsync.StopContainer, ID: id, UID: string(pod.UID), Name: c.Name, Restart: true, Why: "FailedPostStartHook"}
	if grace := pod.Spec.TerminationGracePeriodSeconds; grace != nil {
		kill.Grace = podsync.Seconds(*grace)
	}
	if err := d.Stop(interrupt, now, pod, kill); err != nil {
		d.o.Log.WarnContext(ctx, "container whose hook failed runs on", "container", c.Name, "err", err)
	}
	return Reasoned("PostStartHookError", fmt.Errorf("hook after the start of container %s failed", c.Name))
}
