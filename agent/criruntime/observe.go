package criruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// seen has the statuses, which hold as long as the state of their object does: an exited
// container does not exit again, and a sandbox keeps its addresses.
type seen struct {
	sandboxes  map[string]*cri.PodSandboxStatus
	containers map[string]*cri.ContainerStatus
}

// Observe returns what exists under key, as worker.Runtime says: two lists, and
// one status for each object whose state has changed since the last time.
func (d *Driver) Observe(ctx context.Context, key podsync.Key, pod *v1.Pod) (podsync.Have, error) {
	sandboxes, err := d.runtime.ListPodSandbox(ctx, &cri.PodSandboxFilter{LabelSelector: d.of(key)})
	if err != nil {
		return podsync.Have{}, Fault(err)
	}
	containers, err := d.runtime.ListContainers(ctx, &cri.ContainerFilter{LabelSelector: d.of(key)})
	if err != nil {
		return podsync.Have{}, Fault(err)
	}
	have := podsync.Have{Files: d.files.Of(key), Accepted: map[string]*v1.Pod{}}
	have.Ending = d.files.EndingOf(have.Files)
	for _, uid := range have.Files {
		have.Accepted[uid] = d.files.Pod(types.UID(uid))
	}
	d.mu.Lock()
	last := d.seen[key]
	d.mu.Unlock()
	now := seen{map[string]*cri.PodSandboxStatus{}, map[string]*cri.ContainerStatus{}}
	for _, sb := range sandboxes {
		status, err := d.sandboxStatus(ctx, sb, last.sandboxes[sb.Id])
		switch {
		case errors.Is(err, fault.NotFound): // removed after the list was made
			continue
		case err != nil:
			return podsync.Have{}, err
		}
		now.sandboxes[sb.Id] = status
		have.Sandboxes = append(have.Sandboxes, SandboxOf(sb, status))
	}
	for _, c := range containers {
		status, err := d.containerStatus(ctx, c, last.containers[c.Id])
		switch {
		case errors.Is(err, fault.NotFound):
			continue
		case err != nil:
			return podsync.Have{}, err
		}
		now.containers[c.Id] = status
		container := ContainerOf(c, status)
		container.MaxBackoff = d.o.MaxBackoff
		have.Containers = append(have.Containers, container)
	}
	d.mu.Lock()
	if d.seen[key] = now; len(now.sandboxes)+len(now.containers) == 0 {
		delete(d.seen, key)
	}
	d.mu.Unlock()
	Sort(&have)
	if pod != nil {
		have.HasResources = !d.Clean(pod.UID)
		have.Actual = d.files.Actual(string(pod.UID))
		have.Resizing = d.files.Resizing(string(pod.UID))
		have.Logs = d.files.Attempts(pod, have)
	}
	return have, nil
}

func (d *Driver) sandboxStatus(ctx context.Context, sb *cri.PodSandbox, last *cri.PodSandboxStatus) (*cri.PodSandboxStatus, error) {
	if last.GetState() == sb.State && len(IPs(last)) > 0 {
		return last, nil
	}
	resp, err := d.runtime.PodSandboxStatus(ctx, sb.Id, false)
	return resp.GetStatus(), Fault(err)
}

func (d *Driver) containerStatus(ctx context.Context, c *cri.Container, last *cri.ContainerStatus) (*cri.ContainerStatus, error) {
	if last != nil && last.State == c.State {
		return last, nil
	}
	resp, err := d.runtime.ContainerStatus(ctx, c.Id, false)
	if err != nil {
		return nil, Fault(err)
	}
	status := resp.GetStatus()
	if status.GetState() == cri.ContainerState_CONTAINER_EXITED {
		d.addMessage(ctx, status)
	}
	return status, nil
}

// forget drops the statuses under key, so that the next Observe asks for them.
func (d *Driver) forget(key podsync.Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.seen, key)
}

// Sort puts the newest first. Attempts count before times: the clock may have been set back.
func Sort(have *podsync.Have) {
	slices.SortStableFunc(have.Sandboxes, func(a, b podsync.Sandbox) int {
		if a.UID == b.UID && a.Attempt != b.Attempt {
			return int(b.Attempt) - int(a.Attempt)
		}
		return b.CreatedAt.Compare(a.CreatedAt)
	})
	slices.SortStableFunc(have.Containers, func(a, b podsync.Container) int {
		if a.UID == b.UID && a.Name == b.Name && a.Attempt != b.Attempt {
			return int(b.Attempt) - int(a.Attempt)
		}
		return b.CreatedAt.Compare(a.CreatedAt)
	})
}

// SandboxOf merges a sandbox's list entry and status.
func SandboxOf(sb *cri.PodSandbox, status *cri.PodSandboxStatus) podsync.Sandbox {
	return podsync.Sandbox{
		ID:          sb.Id,
		UID:         sb.GetMetadata().GetUid(),
		Attempt:     sb.GetMetadata().GetAttempt(),
		Ready:       sb.State == cri.PodSandboxState_SANDBOX_READY,
		HostNetwork: status.GetLinux().GetNamespaces().GetOptions().GetNetwork() == cri.NamespaceMode_NODE,
		IPs:         IPs(status),
		CreatedAt:   time.Unix(0, sb.CreatedAt),
	}
}

// IPs returns the addresses of a sandbox, primary first.
func IPs(status *cri.PodSandboxStatus) []string {
	var ips []string
	if ip := status.GetNetwork().GetIp(); ip != "" {
		ips = append(ips, ip)
	}
	for _, ip := range status.GetNetwork().GetAdditionalIps() {
		ips = append(ips, ip.GetIp())
	}
	return ips
}

var states = map[cri.ContainerState]podsync.State{
	cri.ContainerState_CONTAINER_CREATED: podsync.Created,
	cri.ContainerState_CONTAINER_RUNNING: podsync.Running,
	cri.ContainerState_CONTAINER_EXITED:  podsync.Exited,
}

// ContainerOf merges a container's list entry and status. The status, which is newer, wins.
func ContainerOf(c *cri.Container, status *cri.ContainerStatus) podsync.Container {
	image := cmp.Or(c.GetImage().GetUserSpecifiedImage(), status.GetImage().GetUserSpecifiedImage(), status.GetImage().GetImage())
	return podsync.Container{
		ID:         c.Id,
		UID:        c.GetLabels()[podspec.LabelPodUID],
		SandboxID:  c.PodSandboxId,
		Name:       c.GetMetadata().GetName(),
		Attempt:    c.GetMetadata().GetAttempt(),
		State:      states[status.GetState()],
		CreatedAt:  time.Unix(0, c.CreatedAt),
		StartedAt:  timeOf(status.GetStartedAt()),
		FinishedAt: timeOf(status.GetFinishedAt()),
		ExitCode:   status.GetExitCode(),
		Reason:     status.GetReason(),
		Message:    status.GetMessage(),
		Image:      image,
		ImageID:    cmp.Or(status.GetImageRef(), c.GetImageRef()),
		LogPath:    status.GetLogPath(),
		Hash:       c.GetAnnotations()[podspec.AnnotationHash],
		Resources:  podspec.ResourcesOf(status.GetResources().GetLinux()),
		User:       userOf(status.GetUser().GetLinux()),
		Grace:      podspec.GraceOf(c.GetAnnotations()),
		Backoff:    podspec.BackoffOf(c.GetAnnotations()),
	}
}

func userOf(u *cri.LinuxContainerUser) *v1.ContainerUser {
	if u == nil {
		return nil
	}
	return &v1.ContainerUser{Linux: &v1.LinuxContainerUser{UID: u.Uid, GID: u.Gid, SupplementalGroups: u.SupplementalGroups}}
}

// timeOf converts CRI's nanoseconds, where 0 means never.
func timeOf(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// mine selects the pods of this agent.
func (d *Driver) mine() map[string]string { return map[string]string{podspec.LabelAgent: d.agent} }

// of selects the pods of this agent with this key, whatever their UID.
func (d *Driver) of(key podsync.Key) map[string]string {
	return map[string]string{podspec.LabelAgent: d.agent, podspec.LabelPodNamespace: key.Namespace, podspec.LabelPodName: key.Name}
}

// addMessage adds the termination message to the status of an exited container: the end of its
// file or, if the container failed and its policy says so, of its log.
func (d *Driver) addMessage(ctx context.Context, s *cri.ContainerStatus) {
	fallback := v1.TerminationMessagePolicy(s.GetAnnotations()[podspec.AnnotationMessagePolicy]) == v1.TerminationMessageFallbackToLogsOnError &&
		s.ExitCode != 0 && s.Reason != "ContainerCannotRun"
	text := ""
	if path := s.GetAnnotations()[podspec.AnnotationMessagePath]; path != "" {
		for _, m := range s.GetMounts() {
			if m.ContainerPath == podspec.Absolute(path) {
				var err error
				if text, err = podfiles.Message(m.HostPath); err != nil && !os.IsNotExist(err) {
					text = fmt.Sprintf("Error on reading termination log %s: %v", m.HostPath, err)
				}
				break
			}
		}
	}
	if text == "" && fallback {
		text = podfiles.LogTail(ctx, s.GetLogPath())
	}
	switch {
	case text == "":
	case s.Message == "":
		s.Message = text
	default:
		s.Message += ": " + text
	}
}
