package test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/agent/status"
)

// A lab is an agent on a runtime of its own, and one pod with the name of its test.
type lab struct {
	*agentProcess
	name string
}

// startLab returns labOn of a new node.
func startLab(t *testing.T, flags ...string) *lab {
	t.Helper()
	n, _ := startNode(t)
	return labOn(t, n, flags...)
}

// labOn starts an agent on a node.
func labOn(t *testing.T, n *node, flags ...string) *lab {
	t.Helper()
	manifests := filepath.Join(n.dir, "manifests")
	if err := os.Mkdir(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	l := &lab{agentProcess: &agentProcess{t: t, n: n, manifests: manifests, flags: flags}}
	l.start()
	t.Cleanup(func() { l.end(syscall.SIGTERM) })
	return l
}

// run runs f as a test of the pod with this spec, in which "IMAGE" is the test image, and
// "DIR" a directory shared by the containers and the test. When f returns, the pod is
// ended, and nothing of it may be left.
func (l *lab) run(t *testing.T, name, spec string, f func(t *testing.T, l *lab)) {
	t.Run(name, func(t *testing.T) {
		agent := *l.agentProcess
		agent.t = t
		mine := &lab{&agent, name}
		if err := os.MkdirAll(mine.dir(), 0o777); err != nil {
			t.Fatal(err)
		}
		mine.write(spec)
		f(t, mine)
		l.agentProcess.cmd = mine.cmd // f may have restarted it
		mine.remove()
		mine.until(func() bool { return mine.pod() == nil }, "the pod "+name+" is gone")
	})
}

func (l *lab) dir() string { return filepath.Join(l.n.dir, "shared", l.name) }

func (l *lab) manifest() string { return filepath.Join(l.manifests, l.name+".yaml") }

func (l *lab) write(spec string) {
	l.t.Helper()
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: " + l.name + ", labels: {test: " + l.name + "}}\nspec:\n" +
		strings.NewReplacer("    image: IMAGE\n", "    image: "+testImage+"\n    imagePullPolicy: Never\n",
			"IMAGE", `"`+testImage+`", imagePullPolicy: Never`, "DIR", l.dir()).Replace(spec)
	tmp := filepath.Join(l.n.dir, l.name+".tmp")
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		l.t.Fatal(err)
	}
	if err := os.Rename(tmp, l.manifest()); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) remove() {
	l.t.Helper()
	if err := os.Remove(l.manifest()); err != nil && !os.IsNotExist(err) {
		l.t.Fatal(err)
	}
}

// pod returns the pod with its status from the agent's files; nil if it has none.
func (l *lab) pod() *v1.Pod {
	l.t.Helper()
	paths, _ := filepath.Glob(filepath.Join(l.n.dir, "agent", "pods", "*", "pod.json"))
	for _, path := range paths {
		var pod v1.Pod
		data, err := os.ReadFile(path)
		if err != nil || json.Unmarshal(data, &pod) != nil || pod.Name != l.name {
			continue // it is being removed
		}
		if data, err = os.ReadFile(filepath.Join(filepath.Dir(path), "status.json")); err == nil {
			if err := json.Unmarshal(data, &pod.Status); err != nil {
				l.t.Fatal(err)
			}
		}
		return &pod
	}
	return nil
}

// status returns the status of one container; the zero value before it has one.
func (l *lab) status(container string) v1.ContainerStatus {
	l.t.Helper()
	pod := l.pod()
	if pod == nil {
		return v1.ContainerStatus{}
	}
	for _, list := range [][]v1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for _, s := range list {
			if s.Name == container {
				return s
			}
		}
	}
	return v1.ContainerStatus{}
}

func (l *lab) phase() v1.PodPhase {
	if pod := l.pod(); pod != nil {
		return pod.Status.Phase
	}
	return ""
}

func (l *lab) condition(kind v1.PodConditionType) v1.ConditionStatus {
	if pod := l.pod(); pod != nil {
		for _, c := range pod.Status.Conditions {
			if c.Type == kind {
				return c.Status
			}
		}
	}
	return ""
}

func (l *lab) awaitPhase(p v1.PodPhase) {
	l.t.Helper()
	l.until(func() bool { return l.phase() == p }, fmt.Sprintf("pod %s is %s", l.name, p))
}

func (l *lab) awaitReady() {
	l.t.Helper()
	l.until(func() bool { return l.condition(v1.PodReady) == v1.ConditionTrue }, "pod "+l.name+" is ready")
}

func (l *lab) awaitRestarts(container string, n int32) {
	l.t.Helper()
	l.until(func() bool { return l.status(container).RestartCount >= n }, fmt.Sprintf("container %s was restarted %d times", container, n))
}

// events returns the pod's events, "Reason: message", oldest first.
func (l *lab) events() []string {
	l.t.Helper()
	all, err := status.ReadEvents(filepath.Join(l.n.dir, "agent", "events"))
	if err != nil {
		l.t.Fatal(err)
	}
	var lines []string
	for _, e := range all {
		if e.InvolvedObject.Name == l.name {
			lines = append(lines, e.Reason+": "+e.Message)
		}
	}
	return lines
}

func (l *lab) awaitEvent(part string) {
	l.t.Helper()
	l.until(func() bool {
		return slices.ContainsFunc(l.events(), func(e string) bool { return strings.Contains(e, part) })
	}, "there is the event "+part)
}

// containers lists the runtime's containers of the pod, or of one name.
func (l *lab) containers(name string) []*cri.Container {
	l.t.Helper()
	selector := map[string]string{"io.kubernetes.pod.name": l.name}
	if name != "" {
		selector["io.kubernetes.container.name"] = name
	}
	resp, err := l.n.runtime().ListContainers(l.t.Context(), &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: selector}})
	if err != nil {
		l.t.Fatal(err)
	}
	return resp.Containers
}

func (l *lab) sandboxes() []*cri.PodSandbox {
	l.t.Helper()
	resp, err := l.n.runtime().ListPodSandbox(l.t.Context(), &cri.ListPodSandboxRequest{
		Filter: &cri.PodSandboxFilter{LabelSelector: map[string]string{"io.kubernetes.pod.name": l.name}},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return resp.Items
}

// exec runs testbin in a running container and returns what it wrote.
func (l *lab) exec(container string, args ...string) string {
	l.t.Helper()
	_, id, _ := strings.Cut(l.status(container).ContainerID, "://")
	resp, err := l.n.runtime().ExecSync(l.t.Context(), &cri.ExecSyncRequest{ContainerId: id, Cmd: append([]string{"/testbin"}, args...), Timeout: 20})
	if err != nil || resp.ExitCode != 0 {
		l.t.Fatalf("exec %q: %v, %v", args, resp, err)
	}
	return string(resp.Stdout)
}

// restart kills the agent and starts another.
func (l *lab) restart() {
	l.t.Helper()
	l.end(syscall.SIGKILL)
	l.start()
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

// pick returns a lab for another pod of the same agent.
func (l *lab) pick(t *testing.T, name string) *lab {
	return &lab{l.agentProcess, name}
}

// clear removes the manifests of all pods, and waits for their end.
func (l *lab) clear() {
	l.t.Helper()
	paths, _ := filepath.Glob(filepath.Join(l.manifests, "*"))
	for _, path := range paths {
		if err := os.Remove(path); err != nil {
			l.t.Fatal(err)
		}
	}
	l.until(func() bool {
		left, err := os.ReadDir(filepath.Join(l.n.dir, "agent", "pods"))
		return err == nil && len(left) == 0
	}, "all pods are gone")
}

// patch patches a pod, or a subresource of it, through the agent's API.
func (l *lab) patch(t *testing.T, path, patch string) {
	t.Helper()
	if err := l.n.patchPod(path, patch); err != nil {
		t.Fatalf("patch %s: %v", path, err)
	}
}

// object writes another manifest beside the pod's.
func (l *lab) object(name, text string) {
	l.t.Helper()
	path := filepath.Join(l.manifests, l.name+"-"+name+".yaml")
	if err := os.WriteFile(path+".tmp", []byte("apiVersion: v1\n"+text), 0o600); err != nil {
		l.t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { os.Remove(path) })
}
