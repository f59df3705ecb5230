package status

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

type noted []string

func (n *noted) Event(on v1.ObjectReference, kind, reason, message string) {
	*n = append(*n, strings.Join([]string{on.FieldPath, kind, reason, message}, " "))
}

// Each back-off is recorded once, however often the status is reported.
func TestRecordBackOffEvents(t *testing.T) {
	pod := &v1.Pod{}
	pod.Namespace, pod.Name, pod.UID = "default", "web", "u"
	waiting := func(id, reason string) *v1.PodStatus {
		c := v1.ContainerStatus{Name: "app", Image: "i:1", ContainerID: id}
		if reason != "" {
			c.State.Waiting = &v1.ContainerStateWaiting{Reason: reason}
		}
		return &v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{c}}
	}
	var got noted
	last := (*v1.PodStatus)(nil)
	for _, now := range []*v1.PodStatus{
		waiting("", "ErrImagePull"), waiting("", "ImagePullBackOff"), waiting("", "ImagePullBackOff"), waiting("", "ErrImagePull"), waiting("", "ImagePullBackOff"),
		waiting("1", ""), waiting("1", "CrashLoopBackOff"), waiting("1", "CrashLoopBackOff"), waiting("2", "CrashLoopBackOff"),
	} {
		RecordBackOffEvents(&got, pod, last, now)
		last = now
	}
	pull, crash := `spec.containers{app} Normal BackOff Back-off pulling image "i:1"`, "spec.containers{app} Warning BackOff Back-off restarting failed container app in pod web_default(u)"
	if want := strings.Join([]string{pull, pull, crash, crash}, "\n"); strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
}
