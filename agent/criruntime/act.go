package criruntime

import (
	"context"
	"fmt"
	"os"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/internal/stage"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Act does one action, as worker.Runtime says. Containers are stopped by Stop.
func (d *Driver) Act(ctx, interrupt context.Context, pod *v1.Pod, a podsync.Action) error {
	switch a.Verb {
	case podsync.RemoveContainer:
		return d.removeContainer(ctx, a)
	case podsync.StopSandbox:
		return gone(d.runtime.StopPodSandbox(ctx, a.ID))
	case podsync.RemoveSandbox:
		return gone(d.runtime.RemovePodSandbox(ctx, a.ID))
	case podsync.ForgetFiles:
		return d.forgetFiles(a.UID)
	case podsync.Release:
		return d.release(a.UID)
	case podsync.RunSandbox:
		return d.runSandbox(ctx, pod, a)
	case podsync.StartContainer:
		return d.startContainer(ctx, interrupt, pod, a)
	case podsync.Resize:
		return d.resize(ctx, pod, a)
	}
	return fmt.Errorf("no such action: %s", a.Verb)
}

// removeContainer also removes the link to its log, and the logs of runs that are too old.
func (d *Driver) removeContainer(ctx context.Context, a podsync.Action) error {
	if err := gone(d.runtime.RemoveContainer(ctx, a.ID)); err != nil {
		return err
	}
	if err := d.files.UnlinkLog(a.ID); err != nil || a.Logs == 0 {
		return err
	}
	return d.files.PruneLogs(types.UID(a.UID), a.Name, a.Logs)
}

// runSandbox prepares the pod's files and runs its sandbox.
func (d *Driver) runSandbox(ctx context.Context, pod *v1.Pod, a podsync.Action) error {
	warn := func(reason, format string, args ...any) {
		d.o.Events.Event(status.PodRef(pod), v1.EventTypeWarning, reason, fmt.Sprintf(format, args...))
	}
	if a.Attempt > 0 {
		d.o.Events.Event(status.PodRef(pod), v1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
	}
	stage.Next(ctx, "runtime's readiness")
	err := d.ready(ctx, pod.Spec.HostNetwork)
	if err == nil {
		err = d.prepare(ctx, pod)
	}
	if err != nil {
		warn(reasonOf(err), "%v", err)
		return err
	}
	if err = d.runPodSandbox(ctx, pod, a, warn); err != nil {
		warn("FailedCreatePodSandBox", "Failed to create pod sandbox: %v", err)
	}
	return Reasoned("FailedCreatePodSandBox", err)
}

func (d *Driver) runPodSandbox(ctx context.Context, pod *v1.Pod, a podsync.Action, warn func(reason, format string, args ...any)) error {
	in, err := d.input(pod)
	if err != nil {
		return err
	}
	config, warnings, err := in.Sandbox(a.Attempt)
	if err != nil {
		return err
	}
	for _, text := range warnings {
		warn("DNSConfigForming", "%s", text)
	}
	if err := os.MkdirAll(config.LogDirectory, 0o755); err != nil {
		return err
	}
	if err := d.files.RemoveResolvConf(string(pod.UID)); err != nil { // what containers before made of it
		return err
	}
	stage.Next(ctx, "sandbox")
	if a.ID != "" { // one that ended by itself may have its address until it is stopped
		if err := gone(d.runtime.StopPodSandbox(ctx, a.ID)); err != nil {
			warn("FailedKillPod", "Failed to stop the sandbox before it: %v", err)
		}
	}
	_, err = d.runtime.RunPodSandbox(ctx, config, in.Handler)
	return Fault(err)
}

// prepare makes what the pod needs on this node. It also runs before each start of a container:
// the content of a volume may have been lost or changed.
func (d *Driver) prepare(ctx context.Context, pod *v1.Pod) error {
	stage.Next(ctx, "volumes")
	if err := d.makeFiles(ctx, pod); err != nil {
		return Reasoned("FailedMount", fmt.Errorf("pod %s: %w", podsync.KeyOf(pod), err))
	}
	stage.Next(ctx, "configuration")
	err := d.o.ContainerManager.Prepare(ctx, pod)
	if reasonOf(err) == "" {
		err = Reasoned("FailedMount", err)
	}
	return err
}

// ready returns an error if the runtime cannot run a sandbox now.
func (d *Driver) ready(ctx context.Context, hostNetwork bool) error {
	resp, err := d.runtime.Status(ctx, false)
	if err != nil {
		return Fault(err)
	}
	for _, c := range resp.GetStatus().GetConditions() {
		switch {
		case c.Status:
		case c.Type == cri.RuntimeReady:
			return Reasoned("RuntimeNotReady", fmt.Errorf("runtime is not ready: %s: %s", c.Reason, c.Message))
		case c.Type == cri.NetworkReady && !hostNetwork:
			return Reasoned("NetworkNotReady", fmt.Errorf("network is not ready: %s: %s", c.Reason, c.Message))
		}
	}
	return nil
}

// makeFiles makes what the pod needs on disk before its sandbox runs. It is safe
// to repeat.
func (d *Driver) makeFiles(ctx context.Context, pod *v1.Pod) error {
	d.setClean(string(pod.UID), false)
	if err := d.files.Accept(pod); err != nil {
		return err
	}
	if err := d.files.MakeLogDir(pod); err != nil {
		return err
	}
	return d.volumes.Make(ctx, pod)
}

// forgetFiles removes the files and the logs of a pod once nothing of it runs.
func (d *Driver) forgetFiles(uid string) error {
	if d.files.Pod(types.UID(uid)) == nil {
		return nil
	}
	if err := d.release(uid); err != nil {
		return err
	}
	if err := d.files.Remove(types.UID(uid)); err != nil {
		return err
	}
	d.setClean(uid, false)
	return nil
}

// release removes what only a running pod needs: its volumes, its cgroup and its user IDs. The
// caller ensures that nothing of it runs. It is safe to repeat.
func (d *Driver) release(uid string) error {
	if err := d.volumes.Remove(types.UID(uid)); err != nil {
		return err
	}
	if err := d.o.ContainerManager.Release(uid); err != nil {
		return err
	}
	d.setClean(uid, true)
	return nil
}

func (d *Driver) setClean(uid string, is bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if is {
		d.clean[uid] = true
	} else {
		delete(d.clean, uid)
	}
}

// Clean reports whether a pod holds nothing any more that only a running pod needs.
func (d *Driver) Clean(uid types.UID) bool {
	d.mu.Lock()
	clean := d.clean[string(uid)]
	d.mu.Unlock()
	return clean || d.files.Pod(uid) == nil
}
