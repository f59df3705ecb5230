package status

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Word is the STATUS of kubectl: the phase, or the reason of the container that says
// most about why the pod is not what it is to be.
func Word(pod *v1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return "Terminating"
	}
	if pod.Status.Reason != "" {
		return pod.Status.Reason
	}
	for i, s := range pod.Status.InitContainerStatuses {
		switch t, w := s.State.Terminated, s.State.Waiting; {
		case t != nil && t.ExitCode == 0, s.State.Running != nil && s.Ready:
			continue
		case t != nil:
			return "Init:" + cmp.Or(t.Reason, "ExitCode:"+strconv.Itoa(int(t.ExitCode)))
		case w != nil && w.Reason != "" && w.Reason != "PodInitializing":
			return "Init:" + w.Reason
		case pod.Status.Phase == v1.PodPending:
			return fmt.Sprintf("Init:%d/%d", i, len(pod.Status.InitContainerStatuses))
		}
	}
	word := string(pod.Status.Phase)
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
		for _, c := range pod.Status.Conditions {
			if c.Type == v1.PodReady && c.Status == v1.ConditionTrue {
				word = "Running"
			}
		}
	}
	return word
}

// Count counts the containers of a pod that are to run to its end, sidecars among
// them: how many are ready, how many there are, and how often they were started
// again.
func Count(pod *v1.Pod) (ready, all, restarts int) {
	count := func(s v1.ContainerStatus) {
		all++
		if s.Ready {
			ready++
		}
		restarts += int(s.RestartCount)
	}
	for _, s := range pod.Status.ContainerStatuses {
		count(s)
	}
	for i, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways && i < len(pod.Status.InitContainerStatuses) {
			count(pod.Status.InitContainerStatuses[i])
		}
	}
	return ready, max(all, len(pod.Spec.Containers)), restarts // before there are statuses, too
}

// NodeWord is the STATUS of kubectl: whether the node is ready, and each pressure that
// there is.
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
	return strings.Join(words, ",")
}
