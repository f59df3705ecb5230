package status

import (
	"fmt"
	"slices"

	"github.com/crisp-cri/crisp/agent/event"
	v1 "k8s.io/api/core/v1"
)

// RecordBackOffEvents records an event for each container that waits for its back-off
// now and did not before.
func RecordBackOffEvents(events event.Recorder, pod *v1.Pod, old, now *v1.PodStatus) {
	if old == nil {
		old = &v1.PodStatus{}
	}
	for _, list := range []struct {
		field    string
		old, now []v1.ContainerStatus
	}{
		{"initContainers", old.InitContainerStatuses, now.InitContainerStatuses},
		{"containers", old.ContainerStatuses, now.ContainerStatuses},
	} {
		for i := range list.now {
			c := &list.now[i]
			if c.State.Waiting == nil {
				continue
			}
			was := slices.IndexFunc(list.old, func(s v1.ContainerStatus) bool { return s.Name == c.Name })
			if was >= 0 && list.old[was].ContainerID == c.ContainerID && list.old[was].State.Waiting != nil &&
				list.old[was].State.Waiting.Reason == c.State.Waiting.Reason {
				continue
			}
			on := event.Container(pod, list.field, c.Name)
			switch c.State.Waiting.Reason {
			case "CrashLoopBackOff":
				events.Event(on, v1.EventTypeWarning, "BackOff",
					fmt.Sprintf("Back-off restarting failed container %s in pod %s_%s(%s)", c.Name, pod.Name, pod.Namespace, pod.UID))
			case "ImagePullBackOff":
				events.Event(on, v1.EventTypeNormal, "BackOff", fmt.Sprintf("Back-off pulling image %q", c.Image))
			}
		}
	}
}
