package criruntime

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/timeline"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Found is a pod as the runtime reports it.
type Found struct {
	// Pod has its metadata, the names and images of its containers and its status. The runtime
	// has no more of its spec.
	Pod  *v1.Pod
	Have podsync.Have
}

// List returns all pods of a runtime by namespace and name, whichever client made them: an agent, a
// kubelet or crictl. It works without an agent.
func List(ctx context.Context, runtime internalapi.RuntimeService, node status.Node) ([]Found, error) {
	sandboxes, err := runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return nil, Fault(err)
	}
	containers, err := runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, Fault(err)
	}
	pods := map[string]*Found{} // by UID
	uids := map[string]string{} // sandbox → UID
	// The newest sandbox of a pod comes last, so that its labels count.
	slices.SortStableFunc(sandboxes, func(a, b *cri.PodSandbox) int { return cmp.Compare(a.CreatedAt, b.CreatedAt) })
	for _, sb := range sandboxes {
		resp, err := runtime.PodSandboxStatus(ctx, sb.Id, false)
		if err = Fault(err); errors.Is(err, fault.NotFound) {
			continue
		} else if err != nil {
			return nil, err
		}
		uid := sb.GetMetadata().GetUid()
		uids[sb.Id] = uid
		if pods[uid] == nil {
			pods[uid] = &Found{}
		}
		pods[uid].Pod = podOf(sb)
		pods[uid].Have.Sandboxes = append(pods[uid].Have.Sandboxes, SandboxOf(sb, resp.GetStatus()))
	}
	for _, c := range containers {
		f := pods[uids[c.PodSandboxId]]
		if f == nil {
			continue
		}
		resp, err := runtime.ContainerStatus(ctx, c.Id, false)
		if err = Fault(err); errors.Is(err, fault.NotFound) {
			continue
		} else if err != nil {
			return nil, err
		}
		found := ContainerOf(c, resp.GetStatus())
		found.UID = uids[c.PodSandboxId]
		f.Have.Containers = append(f.Have.Containers, found)
	}
	var list []Found
	for _, f := range pods {
		f.complete(node)
		list = append(list, *f)
	}
	SortFound(list)
	return list, nil
}

func podOf(sb *cri.PodSandbox) *v1.Pod {
	pod := &v1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name:        sb.GetMetadata().GetName(),
			Namespace:   sb.GetMetadata().GetNamespace(),
			UID:         types.UID(sb.GetMetadata().GetUid()),
			Labels:      sb.Labels,
			Annotations: sb.Annotations,
		},
		Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicy(sb.Annotations[podspec.AnnotationRestartPolicy])},
	}
	split := func(list string) (out []v1.Container) {
		for name := range strings.SplitSeq(list, ",") {
			if name != "" {
				out = append(out, v1.Container{Name: name})
			}
		}
		return out
	}
	pod.Spec.Containers = split(sb.Annotations[podspec.AnnotationContainers])
	pod.Spec.InitContainers = split(sb.Annotations[podspec.AnnotationInitContainers])
	return pod
}

// complete fills in the containers that no annotation names, and the status.
func (f *Found) complete(node status.Node) {
	Sort(&f.Have)
	spec := &f.Pod.Spec
	for _, c := range slices.Backward(f.Have.Containers) { // oldest first
		i := slices.IndexFunc(spec.Containers, func(known v1.Container) bool { return known.Name == c.Name })
		j := slices.IndexFunc(spec.InitContainers, func(known v1.Container) bool { return known.Name == c.Name })
		switch {
		case i >= 0:
			spec.Containers[i].Image = c.Image
		case j >= 0:
			spec.InitContainers[j].Image = c.Image
		default:
			spec.Containers = append(spec.Containers, v1.Container{Name: c.Name, Image: c.Image})
		}
	}
	spec.HostNetwork = f.Have.Sandboxes[0].HostNetwork // a found pod has at least one sandbox
	f.Pod.CreationTimestamp = metav1.Time{Time: f.Have.Sandboxes[len(f.Have.Sandboxes)-1].CreatedAt}
	f.Pod.Status = status.Of(f.Pod, f.Have, nil, node, time.Now())
	f.explain()
}

// explain adds what only the agent's files tell: that the pod is ending or was stopped, and why
// containers wait. It adds only what matches the state in the runtime.
func (f *Found) explain() {
	dir := f.Pod.Annotations[podspec.AnnotationDir]
	if dir == "" || filepath.Base(dir) != string(f.Pod.UID) {
		return
	}
	kept, ending := podfiles.Kept(dir)
	if ending != nil {
		f.Pod.DeletionTimestamp = ending
	}
	if kept == nil {
		return
	}
	reasons := func(have, kept []v1.ContainerStatus) {
		for i := range have {
			k := podsync.StatusOf(have[i].Name, kept)
			if k != nil && k.State.Waiting != nil && have[i].State.Running == nil && k.ContainerID == have[i].ContainerID {
				have[i].State, have[i].LastTerminationState = k.State, k.LastTerminationState
			}
		}
	}
	if kept.Reason == podsync.StoppedReason && !f.Have.Alive(string(f.Pod.UID)) {
		f.Pod.Status.Phase, f.Pod.Status.Reason, f.Pod.Status.Message = kept.Phase, kept.Reason, kept.Message
	}
	reasons(f.Pod.Status.ContainerStatuses, kept.ContainerStatuses)
	reasons(f.Pod.Status.InitContainerStatuses, kept.InitContainerStatuses)
	if f.Pod.Status.HostIP == "" {
		f.Pod.Status.HostIP, f.Pod.Status.HostIPs = kept.HostIP, kept.HostIPs
	}
	if f.Pod.Spec.HostNetwork && f.Have.Sandboxes[0].Ready {
		f.Pod.Status.PodIP, f.Pod.Status.PodIPs = kept.PodIP, kept.PodIPs
	}
}

// SortFound sorts by namespace and name.
func SortFound(list []Found) {
	slices.SortFunc(list, func(a, b Found) int {
		return cmp.Or(strings.Compare(a.Pod.Namespace, b.Pod.Namespace), strings.Compare(a.Pod.Name, b.Pod.Name), strings.Compare(string(a.Pod.UID), string(b.Pod.UID)))
	})
}

// Startup returns the timeline of the runtime's work for the pod with this UID, which crispd
// includes in its verbose answers: of its sandbox, once listed, and of calls under way. Other
// runtimes have none.
func Startup(ctx context.Context, runtime internalapi.RuntimeService, uid string) []timeline.Stage {
	sandboxes, err := runtime.ListPodSandbox(ctx, &cri.PodSandboxFilter{LabelSelector: map[string]string{podspec.LabelPodUID: uid}})
	if err != nil {
		return nil
	}
	for _, sb := range sandboxes {
		var info struct{ Startup []timeline.Stage }
		resp, err := runtime.PodSandboxStatus(ctx, sb.Id, true)
		if err == nil && json.Unmarshal([]byte(resp.GetInfo()["info"]), &info) == nil && len(info.Startup) > 0 {
			return info.Startup
		}
	}
	status, err := runtime.Status(ctx, true)
	if err != nil {
		return nil
	}
	var activity struct {
		Starting []struct {
			UID    string
			Stages []timeline.Stage
		}
	}
	if json.Unmarshal([]byte(status.GetInfo()["activity"]), &activity) != nil {
		return nil
	}
	for _, pod := range activity.Starting {
		if pod.UID == uid {
			return pod.Stages
		}
	}
	return nil
}
