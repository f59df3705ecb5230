package kubelet

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A pod's network counters continue when the container whose process cAdvisor uses to read them
// ends, and when crispd is restarted: cAdvisor queries the runtime once for each cgroup.
func TestMetricsAfterRestarts(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it runs containers")
	}
	if _, err := os.Stat(kubeletProgram()); err != nil {
		t.Skipf("the kubelet is not built (%v): make test-kubelet", err)
	}
	n := newNode(t, "kubelet")
	n.startCrispd()
	n.flags = []string{"--containerd=" + filepath.Join(n.dir, "run", "cadvisor.sock")}
	n.drive()
	n.runMetricsPod("plain")
	n.counted("plain", time.Now())

	n.killContainer("web") // both containers, one after the other: cAdvisor uses one of them
	n.killContainer("side")
	n.counted("plain", time.Now())

	n.stop("crispd")
	n.proxy.stop()
	n.startCrispd()
	n.killContainer("web")
	n.killContainer("side")
	n.counted("plain", time.Now())
	n.endMetricsPods("plain")
}

// counted waits until the kubelet reports received bytes of the pod's network with a timestamp
// after since.
func (n *node) counted(pod string, since time.Time) {
	n.t.Helper()
	form := regexp.MustCompile(`(?m)^container_network_receive_bytes_total\{.*interface="eth0".*pod="` + pod + `-` + nodeName + `".*\} \S+ (\d+)$`)
	n.until("the network of "+pod+" is counted", 3*time.Minute, func() bool {
		text, err := n.fetch("/metrics/cadvisor")
		m := form.FindSubmatch(text)
		if err != nil || m == nil {
			return false
		}
		ms, err := strconv.ParseInt(string(m[1]), 10, 64)
		return err == nil && time.UnixMilli(ms).After(since)
	})
}

// killContainer kills the container's process and waits until the kubelet has started the next one.
func (n *node) killContainer(name string) {
	n.t.Helper()
	running := func() int {
		pid, err := n.process(func(c *cri.Container) bool { return c.Metadata.Name == name })
		if err != nil {
			n.t.Log(strings.TrimSpace(err.Error()))
		}
		return pid
	}
	before := running()
	if before <= 1 {
		n.t.Fatalf("%s has the process %d", name, before)
	}
	check(n.t, syscall.Kill(before, syscall.SIGKILL))
	n.until(name+" runs again", 2*time.Minute, func() bool { now := running(); return now > 1 && now != before })
}

// process returns the PID of the running container that satisfies is, 0 if none does.
func (n *node) process(is func(*cri.Container) bool) (pid int, err error) {
	runtime := cri.NewRuntimeServiceClient(n.conn)
	list, err := runtime.ListContainers(context.Background(), &cri.ListContainersRequest{Filter: &cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}}})
	for _, c := range list.GetContainers() {
		if !is(c) {
			continue
		}
		var info struct{ Pid int }
		if status, serr := runtime.ContainerStatus(context.Background(), &cri.ContainerStatusRequest{ContainerId: c.Id, Verbose: true}); serr == nil {
			err = json.Unmarshal([]byte(status.Info["info"]), &info)
			pid = info.Pid
		}
	}
	return pid, err
}
