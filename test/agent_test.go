package test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/testenv"
)

// Pods are added and removed while the agent and crispd are killed again and again.
// Afterwards each container runs exactly once, and in the end nothing is left: a new agent
// needs only the runtime and its labels.
func TestAgentKills(t *testing.T) {
	const pods = 6
	n, config := startNode(t)
	manifests := filepath.Join(n.dir, "manifests")
	if err := os.Mkdir(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	a := &agentProcess{t: t, n: n, manifests: manifests}
	a.start()
	defer func() { a.end(syscall.SIGTERM) }()
	// The delays are uneven so that the kills hit each step of a pod's life.
	kills := func() {
		t.Helper()
		for i, delay := range []int{137, 291, 43, 523, 211, 89, 370} {
			time.Sleep(time.Duration(delay) * time.Millisecond)
			if i%3 != 1 {
				if err := n.stopDaemon(syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			if i%3 != 0 {
				a.end(syscall.SIGKILL)
				a.start()
			}
			if n.cmd == nil {
				if err := n.start(config, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
	}

	for i := range pods {
		text := fmt.Sprintf(killsPod, i, testImage, testImage, n.dir)
		if err := os.WriteFile(filepath.Join(manifests, fmt.Sprintf("p%d.yaml", i)), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kills()
	a.until(func() bool { return len(n.running(t)) == 2*pods }, "all containers run")
	// Count the processes themselves, whatever the runtime reports.
	if got := len(testenv.Processes(func(args []string) bool { return slices.Contains(args, n.dir+"/mark") })); got != pods {
		t.Errorf("%d processes bear the mark, want one for each of %d pods", got, pods)
	}
	ids := n.running(t)
	kills()
	a.until(func() bool { return len(n.running(t)) == 2*pods }, "all containers run again")
	for id := range n.running(t) {
		if !ids[id] {
			t.Errorf("container %s was restarted without need", id)
		}
	}

	if err := os.RemoveAll(manifests); err != nil {
		t.Fatal(err)
	}
	// A missing directory means nothing; an empty one means that there are no pods.
	if err := os.Mkdir(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	kills()
	a.until(func() bool {
		sandboxes, err := n.runtime().ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
		return err == nil && len(sandboxes.Items) == 0
	}, "all pods are gone")
	for _, dir := range []string{"pods", "logs"} {
		dir = filepath.Join(n.dir, "agent", dir)
		a.until(func() bool { left, err := os.ReadDir(dir); return err == nil && len(left) == 0 }, dir+" is empty")
	}
}

const killsPod = `apiVersion: v1
kind: Pod
metadata: {name: p%d}
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - {name: a, image: "%s", imagePullPolicy: Never, args: [sleep, for-ever]}
  - name: b
    image: "%s"
    imagePullPolicy: Never
    args: [print, %s/mark, sleep, for-ever]
    volumeMounts: [{name: m, mountPath: /m}]
  volumes: [{name: m, emptyDir: {medium: Memory}}]
`

// running returns the IDs of the running containers.
func (n *node) running(t *testing.T) map[string]bool {
	t.Helper()
	resp, err := n.runtime().ListContainers(t.Context(), &cri.ListContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, c := range resp.Containers {
		if c.State == cri.ContainerState_CONTAINER_RUNNING {
			ids[c.Id] = true
		}
	}
	return ids
}
