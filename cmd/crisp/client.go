package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// patience is how long a command waits for the runtime's first answer.
const patience = 10 * time.Second

// connect connects to the runtime unless it is done.
func (c *cli) connect() (err error) {
	if c.runtime == nil {
		c.runtime, c.store, err = criruntime.Dial(c.ctx, c.endpoint, patience)
	}
	return err
}

// pods lists the pods of the runtime, and those of its agent that have no sandbox yet.
func (c *cli) pods() ([]criruntime.Found, error) {
	version, err := c.runtime.Version(c.ctx, "")
	if err != nil {
		return nil, criruntime.Fault(err)
	}
	list, err := criruntime.List(c.ctx, c.runtime, status.Node{Runtime: version.RuntimeName})
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, f := range list {
		known[string(f.Pod.UID)] = true
	}
	if pods, ok := c.podsOfAgent(); ok {
		list = merge(list, pods)
	} else {
		for _, pod := range podfiles.Waiting(c.agentRoot, c.endpoint, known) {
			list = append(list, criruntime.Found{Pod: pod})
		}
	}
	criruntime.SortFound(list)
	return list, nil
}

// podsOfAgent returns the pods of our runtime's agent, if it runs.
func (c *cli) podsOfAgent() ([]v1.Pod, bool) {
	if !c.agentRuns() {
		return nil, false
	}
	var pods v1.PodList
	if err := c.fetch("/pods", nil, &pods); err != nil {
		return nil, false
	}
	return pods.Items, true
}

// merge replaces the agent's pods in found by the agent's version of them, and adds those that
// the runtime does not have. The runtime may also have pods of a kubelet, or of crictl.
func merge(found []criruntime.Found, pods []v1.Pod) []criruntime.Found {
	for i := range pods {
		pod := &pods[i]
		j := slices.IndexFunc(found, func(f criruntime.Found) bool { return f.Pod.UID == pod.UID })
		if j < 0 {
			found = append(found, criruntime.Found{Pod: pod})
			continue
		}
		if pod.CreationTimestamp.IsZero() {
			pod.CreationTimestamp = found[j].Pod.CreationTimestamp
		}
		found[j].Pod = pod
	}
	return found
}

// connectToPod connects to the runtime and finds one pod.
func (c *cli) connectToPod(namespace, name string) (criruntime.Found, error) {
	if err := c.connect(); err != nil {
		return criruntime.Found{}, err
	}
	all, err := c.pods()
	if err != nil {
		return criruntime.Found{}, err
	}
	return c.pick(all, namespace, name)
}

// pick finds the pod for an argument: "web", "pod/web", or for "deploy/web" the best of its pods;
// if there are several, it prints its choice to stderr.
func (c *cli) pick(all []criruntime.Found, namespace, arg string) (criruntime.Found, error) {
	named, err := objectNames([]string{arg}, true)
	if err != nil {
		return criruntime.Found{}, err
	}
	all = slices.DeleteFunc(all, func(f criruntime.Found) bool { return f.Pod.Namespace != namespace || !named[0].covers(f.Pod) })
	if len(all) == 0 {
		return criruntime.Found{}, named[0].missing(namespace)
	}
	f := slices.MinFunc(all, best)
	if len(all) > 1 && named[0].kind.Name != "Pod" {
		fmt.Fprintf(c.stderr, "crisp: pod %s of the %d of %s\n", f.Pod.Name, len(all), named[0])
	}
	return f, nil
}

// container returns the status of the named container. Without a name it takes the first; if there
// are several, it prints its choice to stderr.
func (c *cli) container(f criruntime.Found, name string) (v1.ContainerStatus, error) {
	containers := f.Pod.Status.ContainerStatuses
	all := slices.Concat(containers, f.Pod.Status.InitContainerStatuses, f.Pod.Status.EphemeralContainerStatuses) // regular ones first
	if name == "" && len(containers) > 0 {
		if len(all) > 1 && terminal(c.stderr) != nil {
			fmt.Fprintf(c.stderr, "crisp: using container %s (of %s)\n", containers[0].Name, strings.Join(containerNames(all), ", "))
		}
		return containers[0], nil
	}
	i := slices.IndexFunc(all, func(s v1.ContainerStatus) bool { return s.Name == name })
	switch {
	case name == "":
		return v1.ContainerStatus{}, fault.NotFound.Errorf("pod %s has no container yet", f.Pod.Name)
	case i < 0:
		return v1.ContainerStatus{}, fault.NotFound.Errorf("pod %s has no container %s: it has %s", f.Pod.Name, name, strings.Join(containerNames(all), ", "))
	}
	return all[i], nil
}

// statusesOf returns the statuses of all containers of a pod, in the order in which they start.
func statusesOf(pod *v1.Pod) []v1.ContainerStatus {
	st := pod.Status
	return slices.Concat(st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses)
}

// statusOf returns the status of a container of a pod, empty if there is no such container.
func statusOf(pod *v1.Pod, name string) v1.ContainerStatus {
	return ptr.Deref(podsync.StatusOf(name, statusesOf(pod)), v1.ContainerStatus{})
}

// running finds a running container by the names of pod and container. It connects to the runtime
// and returns the container's ID there.
func (c *cli) running(namespace, name, container string) (string, error) {
	f, err := c.connectToPod(namespace, name)
	if err != nil {
		return "", err
	}
	st, err := c.container(f, container)
	if err != nil {
		return "", err
	}
	if st.State.Running == nil {
		return "", fault.WrongState.Errorf("container %s of pod %s is not running: %s", st.Name, f.Pod.Name, stateWord(st))
	}
	return podsync.RuntimeID(st.ContainerID), nil
}

func stateWord(s v1.ContainerStatus) string {
	switch {
	case s.State.Waiting != nil:
		return s.State.Waiting.Reason
	case s.State.Terminated != nil:
		return fmt.Sprintf("exited with code %d", s.State.Terminated.ExitCode)
	}
	return "unknown"
}

func containerNames(list []v1.ContainerStatus) []string {
	names := make([]string, len(list))
	for i, s := range list {
		names[i] = s.Name
	}
	return names
}
