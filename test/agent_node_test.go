package test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const sleeper = "\n  terminationGracePeriodSeconds: 2\n  containers: [{name: app, image: IMAGE, args: [sleep, for-ever]}]\n"

// While the network is not ready only pods that do not need it run, and the
// others say what they wait for; a RuntimeClass chooses a handler, and an unknown
// one is told of with those that there are.
func TestAgentNetworkAndHandlers(t *testing.T) {
	n, config := startNode(t)
	cni := filepath.Join(n.dir, "cni")
	bad := filepath.Join(cni, "10-bad.conflist")
	if err := os.Mkdir(cni, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bad, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("[cni]\nconf_dir = %q\n[handlers.alt]\n", cni)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := n.stopDaemon(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := n.start(config, nil); err != nil {
		t.Fatal(err)
	}
	l := labOn(t, n)
	class := "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: %s}\nhandler: %s\n"
	for _, name := range []string{"alt", "other"} {
		if err := os.WriteFile(filepath.Join(l.manifests, name+".yaml"), fmt.Appendf(nil, class, name, name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	host := l.pick(t, "host")
	host.write("  hostNetwork: true" + sleeper)
	host.awaitReady()
	if pod := host.pod(); pod.Status.PodIP == "" || pod.Status.PodIP != pod.Status.HostIP {
		t.Errorf("on the host's network it has the address %q, the host %q", pod.Status.PodIP, pod.Status.HostIP)
	}
	web := l.pick(t, "web")
	web.write("  runtimeClassName: alt" + sleeper)
	web.awaitEvent("NetworkNotReady: network is not ready")
	l.says(0, `NetworkReady=false \S`, "status")
	if phase := web.phase(); phase != v1.PodPending || len(web.sandboxes()) != 0 {
		t.Errorf("it is %s and has %d sandboxes", phase, len(web.sandboxes()))
	}
	if err := os.Remove(bad); err != nil {
		t.Fatal(err)
	}
	web.awaitReady()
	l.says(0, `NetworkReady=true`, "status")
	inspect, err := n.runtime().PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: web.sandboxes()[0].Id})
	if err != nil || inspect.Status.RuntimeHandler != "alt" {
		t.Errorf("the runtime tells of handler %q, %v", inspect.GetStatus().GetRuntimeHandler(), err)
	}
	other, missing := l.pick(t, "nohandler"), l.pick(t, "noclass")
	other.write("  runtimeClassName: other" + sleeper)
	missing.write("  runtimeClassName: missing" + sleeper)
	other.awaitEvent(`the runtime has no handler "other"; it has [`)
	missing.awaitEvent("missing")
	for _, name := range []string{"nohandler", "noclass"} { // events come first
		l.until(func() bool {
			out, _ := l.agentProcess.crisp("", "get", "pods")
			return regexp.MustCompile(name + ` +0/1 +FailedCreatePodSandBox `).MatchString(out)
		}, "the list tells why "+name+" waits")
	}
	if other.phase() != v1.PodPending || len(other.sandboxes())+len(missing.sandboxes()) > 0 {
		t.Errorf("without a handler it is %s", other.phase())
	}
	// The class appears, and the pod begins without being touched.
	if err := os.WriteFile(filepath.Join(l.manifests, "missing.yaml"), fmt.Appendf(nil, class, "missing", "alt"), 0o644); err != nil {
		t.Fatal(err)
	}
	missing.awaitReady()
	l.clear()
}

// The agent may be there before the runtime, and the runtime may be away for a
// while: nothing is ended and nothing is started again for it.
func TestAgentRuntimeAway(t *testing.T) {
	n, config := startNode(t)
	if err := n.stopDaemon(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	l := labOn(t, n)
	web := l.pick(t, "web")
	web.write(sleeper)
	time.Sleep(2 * time.Second)
	if err := n.start(config, nil); err != nil {
		t.Fatal(err)
	}
	web.awaitReady()
	id := web.status("app").ContainerID
	if err := n.stopDaemon(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	time.Sleep(5 * time.Second)
	if err := n.start(config, nil); err != nil {
		t.Fatal(err)
	}
	later := l.pick(t, "later")
	later.write(sleeper)
	later.awaitReady()
	if s := web.status("app"); s.ContainerID != id || s.RestartCount != 0 {
		t.Errorf("the container was started again: %+v", s)
	}
	// A foreign pod is nobody's to end.
	foreign, err := n.runtime().RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: "foreign", Namespace: "default", Uid: "f"}, Linux: &cri.LinuxPodSandboxConfig{},
	}})
	if err != nil {
		t.Fatal(err)
	}
	l.restart()
	l.clear()
	resp, err := n.runtime().PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: foreign.PodSandboxId})
	if err != nil || resp.Status.State != cri.PodSandboxState_SANDBOX_READY {
		t.Errorf("the foreign pod: %v, %v", resp, err)
	}
	if _, err := n.runtime().StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: foreign.PodSandboxId}); err != nil {
		t.Error(err)
	}
}

// An agent that is told to stops its pods when it ends, without deleting them:
// the next one starts them again.
func TestAgentStopsPods(t *testing.T) {
	n, _ := startNode(t)
	l := labOn(t, n, "--stop-pods-on-exit")
	web := l.pick(t, "web")
	web.write(sleeper)
	web.awaitReady()
	l.end(syscall.SIGTERM)
	if slices.ContainsFunc(web.containers(""), func(c *cri.Container) bool { return c.State == cri.ContainerState_CONTAINER_RUNNING }) {
		t.Error("a container runs on")
	}
	if len(web.containers("")) != 1 || web.pod() == nil {
		t.Error("the pod was deleted")
	}
	l.start()
	web.awaitReady()
	web.until(func() bool { return web.status("app").RestartCount == 1 }, "it was restarted once")
	l.clear()
}

// What may change in a pod that runs: it is given other resources, somebody looks
// into it, and it is deleted in a hurry.
func TestAgentPodChanges(t *testing.T) {
	n, _ := startNode(t)
	l := labOn(t, n)
	web := l.pick(t, "web")
	text := `apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 60
  shareProcessNamespace: false
  containers:
  - {name: app, image: "` + testImage + `", imagePullPolicy: Never, args: [ignore-term, sleep, for-ever], resources: {limits: {cpu: 200m, memory: 32Mi}}}
  - {name: again, image: "` + testImage + `", imagePullPolicy: Never, args: [sleep, for-ever], resources: {limits: {cpu: 100m}}, resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]}
`
	l.until(func() bool { return exists(filepath.Join(n.dir, "agent", "agent.sock")) }, "the agent serves")
	l.crisp(t, text, "apply", "-f", "-")
	web.awaitReady()
	id := web.status("app").ContainerID

	l.patch(t, "web/resize", `{"spec": {"containers": [{"name": "app", "resources": {"limits": {"cpu": "400m", "memory": "48Mi"}, "requests": {"cpu": "400m", "memory": "48Mi"}}}]}}`)
	web.until(func() bool {
		r := web.status("app").Resources
		return r != nil && r.Limits.Cpu().String() == "400m" && r.Limits.Memory().String() == "48Mi" && web.condition(v1.PodResizeInProgress) == ""
	}, "the container has its new resources")
	_, bare, _ := strings.Cut(id, "://")
	resp, err := n.runtime().ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: bare})
	if err != nil || resp.Status.Resources.Linux.CpuQuota != 40000 || resp.Status.Resources.Linux.MemoryLimitInBytes != 48<<20 {
		t.Errorf("the runtime says %+v, %v", resp.GetStatus().GetResources(), err)
	}
	if s := web.status("app"); s.ContainerID != id || s.RestartCount != 0 {
		t.Errorf("it was started again: %+v", s)
	}

	l.patch(t, "web/resize", `{"spec": {"containers": [{"name": "again", "resources": {"limits": {"cpu": "150m"}, "requests": {"cpu": "150m"}}}]}}`)
	web.awaitRestarts("again", 1)
	l.patch(t, "web/resize", `{"spec": {"containers": [{"name": "app", "resources": {"limits": {"cpu": "4000"}, "requests": {"cpu": "4000"}}}]}}`)
	web.until(func() bool { return web.condition(v1.PodResizePending) == v1.ConditionTrue }, "the resize is pending")
	if got := web.status("app").Resources.Limits.Cpu().String(); got != "400m" {
		t.Errorf("meanwhile it has %s", got)
	}

	l.crisp(t, "", "debug", "web", "--image", testImage, "--pull", "Never", "--target", "app", "-c", "look", "--", "/testbin", "sleep", "for-ever")
	web.until(func() bool { return web.status("look").State.Running != nil }, "the ephemeral container runs")
	if cmdline := strings.ReplaceAll(web.exec("look", "cat", "/proc/1/cmdline"), "\x00", " "); !strings.Contains(cmdline, "ignore-term") {
		t.Errorf("process 1 is %q", cmdline)
	}

	begin := time.Now()
	l.crisp(t, "", "delete", "pod/web", "--wait=false")
	web.until(func() bool { pod := web.pod(); return pod == nil || pod.DeletionTimestamp != nil }, "it is being deleted")
	l.crisp(t, "", "delete", "pod/web", "--grace-period", "3")
	web.until(func() bool { return web.pod() == nil && len(web.sandboxes()) == 0 }, "it is gone")
	if took := time.Since(begin); took < 3*time.Second {
		t.Errorf("it took %v", took)
	}
}
