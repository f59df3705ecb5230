package status

import (
	"fmt"
	"slices"

	"github.com/crisp-cri/crisp/agent/event"
	v1 "k8s.io/api/core/v1"
)

// RecordBackOffEvents records an event for each container that waits for its back-off in now but
// not in old, which may be nil.
func RecordBackOffEvents(events event.Recorder, pod *v1.Pod, old, now *v1.PodStatus) {
	if old == nil {
		old = &v1.PodStatus{}
	}
	before := slices.Concat(old.InitContainerStatuses, old.ContainerStatuses)
	for _, c := range slices.Concat(now.InitContainerStatuses, now.ContainerStatuses) {
		if c.State.Waiting == nil || slices.ContainsFunc(before, func(was v1.ContainerStatus) bool {
			return was.Name == c.Name && was.ContainerID == c.ContainerID && was.State.Waiting != nil && was.State.Waiting.Reason == c.State.Waiting.Reason
		}) {
			continue
		}
		on := event.Container(pod, c.Name)
		switch c.State.Waiting.Reason {
		case "CrashLoopBackOff":
			events.Event(on, v1.EventTypeWarning, "BackOff",
				fmt.Sprintf("Back-off restarting failed container %s in pod %s_%s(%s)", c.Name, pod.Name, pod.Namespace, pod.UID))
		case "ImagePullBackOff":
			events.Event(on, v1.EventTypeNormal, "BackOff", fmt.Sprintf("Back-off pulling image %q", c.Image))
		}
	}
}
