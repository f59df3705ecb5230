package test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/fake"
)

// An agent behaves the same on every runtime: on crispd, on one that exists in memory only,
// and (TestAgentOnContainerd) on containerd.
func TestAgentSmoke(t *testing.T) {
	t.Run("crispd", func(t *testing.T) { smoke(t, startLab(t)) })
	t.Run("memory", func(t *testing.T) { smoke(t, labOn(t, startFake(t))) })
}

// smoke tests what every CRI runtime can do.
func smoke(t *testing.T, l *lab) {
	l.run(t, "smoke", `
  terminationGracePeriodSeconds: 1
  containers:
  - {name: app, image: IMAGE, args: [sleep, for-ever], env: [{name: MODE, valueFrom: {configMapKeyRef: {name: conf, key: mode}}}]}
  - {name: side, image: IMAGE, args: [sleep, for-ever]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {mode: fast}
`, func(t *testing.T, l *lab) {
		l.awaitReady()
		// The command line shows what the runtime reports about the pod.
		sandbox, err := l.n.runtime().PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: l.sandboxes()[0].Id})
		if err != nil {
			t.Fatal(err)
		}
		ip := sandbox.Status.Network.Ip
		if ip == "" || ip != l.pod().Status.PodIP {
			t.Errorf("the pod has the address %q, its sandbox %q", l.pod().Status.PodIP, ip)
		}
		l.says(0, `smoke +2/2 +Running +0 +\S+ +`+strings.ReplaceAll(ip, ".", `\.`)+` `, "get", "pods", "-o", "wide")
		out, code := l.agentProcess.crisp("", "version", "-o", "json")
		var version struct{ Runtime string }
		if err := json.Unmarshal([]byte(out), &version); err != nil || code != 0 || version.Runtime == "" {
			t.Fatalf("crisp version: %d, %v\n%s", code, err, out)
		}
		id := l.status("app").ContainerID
		if !strings.HasPrefix(id, version.Runtime+"://") {
			t.Errorf("the container's ID is %s, the runtime's name %s", id, version.Runtime)
		}

		// A new agent finds the running pod.
		l.restart()
		l.until(func() bool { _, code := l.agentProcess.crisp("", "get", "nodes"); return code == 0 }, "the new agent answers")
		l.awaitReady()
		if now := l.status("app").ContainerID; now != id {
			t.Errorf("after a restart of the agent %s runs, before it was %s", now, id)
		}
		// A container that ends is restarted, and no other one.
		_, bare, _ := strings.Cut(id, "://")
		if _, err := l.n.runtime().StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: bare}); err != nil {
			t.Fatal(err)
		}
		l.awaitRestarts("app", 1)
		l.awaitReady()
		if n := l.status("side").RestartCount; n != 0 {
			t.Errorf("the other container was restarted %d times", n)
		}
		// An edit replaces the pod.
		was := l.pod().UID
		l.write("  terminationGracePeriodSeconds: 1\n  containers: [{name: other, image: IMAGE, args: [sleep, for-ever]}]\n")
		l.until(func() bool {
			pod := l.pod()
			return pod != nil && pod.UID != was && l.condition(v1.PodReady) == v1.ConditionTrue
		}, "the edited pod is ready")
		if n := len(l.containers("")); n != 1 {
			t.Errorf("the new pod has %d containers", n)
		}
	})
	l.until(func() bool { return len(l.sandboxesOf("smoke")) == 0 }, "no sandbox is left")
}

func (l *lab) sandboxesOf(name string) []*cri.PodSandbox {
	l.t.Helper()
	return (&lab{l.agentProcess, name}).sandboxes()
}

// startFake returns a node whose runtime runs no processes, and reports that it does.
func startFake(t *testing.T) *node {
	t.Helper()
	n, err := newNode(t.TempDir(), buildOnce(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.end(t) })
	n.wiped = true // there is no crispd to wipe
	n.socket = filepath.Join(n.dir, "fake.sock")
	runtime := fake.NewFakeRemoteRuntime()
	runtime.ImageService.SetFakeImageSize(1)
	runtime.ImageService.SetFakeImages([]string{testImage})
	if err := runtime.Start("unix://" + n.socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runtime.Stop)
	if n.conn, err = grpc.NewClient("unix://"+n.socket, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.conn.Close() })
	return n
}
