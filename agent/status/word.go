package status

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"
)

// Word returns the STATUS of a pod as kubectl prints it: the phase, or the reason of a container
// that explains why the pod does not run. Unlike in kubectl, a reason of the pod itself, such as
// Evicted, comes before those of its containers.
func Word(pod *v1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return "Terminating"
	}
	if pod.Status.Reason != "" {
		return pod.Status.Reason
	}
	word := initWord(pod)
	if word != "" && !isTrue(pod.Status.Conditions, v1.PodInitialized) {
		return word
	}
	word = cmp.Or(word, string(pod.Status.Phase))
	running := false
	for i := len(pod.Status.ContainerStatuses) - 1; i >= 0; i-- {
		s := pod.Status.ContainerStatuses[i]
		switch t, w := s.State.Terminated, s.State.Waiting; {
		case w != nil && w.Reason != "":
			word = w.Reason
		case t != nil:
			word = cmp.Or(t.Reason, "ExitCode:"+strconv.Itoa(int(t.ExitCode)))
		case s.Ready:
			running = true
		}
	}
	if running && word == "Completed" {
		word = "NotReady"
		if isTrue(pod.Status.Conditions, v1.PodReady) {
			word = "Running"
		}
	}
	return word
}

func initWord(pod *v1.Pod) string {
	for i, s := range pod.Status.InitContainerStatuses {
		switch t, w := s.State.Terminated, s.State.Waiting; {
		case t != nil && t.ExitCode == 0, sidecar(pod, i) && ptr.Deref(s.Started, false):
			continue
		case t != nil:
			return "Init:" + cmp.Or(t.Reason, "ExitCode:"+strconv.Itoa(int(t.ExitCode)))
		case w != nil && w.Reason != "" && w.Reason != "PodInitializing":
			return "Init:" + w.Reason
		case pod.Status.Phase == v1.PodPending:
			return fmt.Sprintf("Init:%d/%d", i, len(pod.Status.InitContainerStatuses))
		}
	}
	return ""
}

// Count returns kubectl's READY of a pod: how many of its containers and sidecars are ready, and
// how many it has.
func Count(pod *v1.Pod) (ready, all int) {
	count := func(s v1.ContainerStatus) {
		all++
		if s.Ready {
			ready++
		}
	}
	for _, s := range pod.Status.ContainerStatuses {
		count(s)
	}
	for i, s := range pod.Status.InitContainerStatuses {
		if sidecar(pod, i) {
			count(s)
		}
	}
	return ready, max(all, len(pod.Spec.Containers)) // there may be no statuses yet
}

func sidecar(pod *v1.Pod, i int) bool {
	return i < len(pod.Spec.InitContainers) && podsync.IsSidecar(&pod.Spec.InitContainers[i])
}

// Restarts returns kubectl's RESTARTS of a pod, such as "3 (5m ago)": how often containers were
// restarted, and how long ago the last of them ended. Before the pod is initialized it counts
// its init containers, and then its containers and sidecars.
func Restarts(pod *v1.Pod, now time.Time) string {
	count, last := int32(0), metav1.Time{}
	add := func(s v1.ContainerStatus) {
		count += s.RestartCount
		if t := s.LastTerminationState.Terminated; t != nil && last.Before(&t.FinishedAt) {
			last = t.FinishedAt
		}
	}
	initialized := isTrue(pod.Status.Conditions, v1.PodInitialized)
	for i, s := range pod.Status.InitContainerStatuses {
		if !initialized || sidecar(pod, i) {
			add(s)
		}
	}
	if initialized {
		for _, s := range pod.Status.ContainerStatuses {
			add(s)
		}
	}
	if count == 0 || last.IsZero() {
		return strconv.Itoa(int(count))
	}
	return fmt.Sprintf("%d (%s ago)", count, duration.HumanDuration(now.Sub(last.Time)))
}

// NodeWord returns the STATUS of a node, separated by commas: Ready or NotReady, its other true
// conditions, and SchedulingDisabled.
func NodeWord(n *v1.Node) string {
	words := []string{"NotReady"}
	for _, c := range n.Status.Conditions {
		switch {
		case c.Type == v1.NodeReady && c.Status == v1.ConditionTrue:
			words[0] = "Ready"
		case c.Type != v1.NodeReady && c.Status == v1.ConditionTrue:
			words = append(words, string(c.Type))
		}
	}
	if n.Spec.Unschedulable {
		words = append(words, "SchedulingDisabled")
	}
	return strings.Join(words, ",")
}
