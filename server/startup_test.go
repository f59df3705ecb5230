package server

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/crilog"
	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/crisp-cri/crisp/internal/timeline"
)

// stages returns the stages in a verbose status.
func stages(t *testing.T, info map[string]string) []timeline.Stage {
	t.Helper()
	var decoded struct{ Startup []timeline.Stage }
	if err := json.Unmarshal([]byte(info["info"]), &decoded); err != nil {
		t.Fatalf("%v in %q", err, info)
	}
	return decoded.Startup
}

func labels(list []timeline.Stage) string {
	var all []string
	for _, s := range list {
		label := s.Label()
		if s.Times > 1 {
			label += fmt.Sprint("*", s.Times)
		}
		if s.Err != "" {
			label += " failed"
		}
		all = append(all, label)
	}
	return strings.Join(all, ", ")
}

// The stages of a pod's start are in the verbose statuses of the sandbox and of each container,
// where crictl prints them.
func TestStartup(t *testing.T) {
	n := newNode(t)
	config := pod("a")
	config.LogDirectory = t.TempDir()
	waiting, release := n.net.block()
	made := make(chan string, 1)
	go func() {
		resp, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: config})
		if err != nil {
			t.Errorf("run sandbox: %v", err)
		}
		made <- resp.GetPodSandboxId()
	}()
	<-waiting
	status, err := n.Status(t.Context(), &cri.StatusRequest{Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	if info := status.Info["activity"]; !strings.Contains(info, config.Metadata.Name) || !strings.Contains(info, `"name":"cni"`) {
		t.Errorf("info while the network is attached: %s", info)
	}
	release()
	sb := <-made
	n.store.coming = []pulls.Pull{{Image: "docker.io/library/" + testImage, Bytes: 12e6, From: "mirror.test", Mirror: true, Ended: time.Now().Add(time.Hour)}}
	if _, err := n.images.PullImage(t.Context(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: testImage}, SandboxConfig: config}); err != nil {
		t.Fatal(err)
	}
	web := forever("web")
	web.LogPath = "web.log"
	id := n.begin(t, sb, web)
	n.begin(t, sb, forever("other"))
	for _, code := range []string{"0", "0", "7"} {
		if _, err := n.ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"testbin", "exit", code}}); err != nil {
			t.Fatal(err)
		}
	}
	const line = "2030-01-02T03:04:05.678901234Z stdout F hello\n"
	if err := os.WriteFile(filepath.Join(config.LogDirectory, "web.log"), []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	resp, err := n.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: sb, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	list := stages(t, resp.Info)
	if got := labels(list); got != "sandbox, pull, create web, start web, first output web, create other, start other, exec web*3 failed" {
		t.Errorf("stages of the pod: %s", got)
	}
	if parts := labels(list[0].Parts); !strings.HasPrefix(parts, "namespaces, cni, plugins") {
		t.Errorf("parts of the sandbox: %s", parts)
	}
	if got := list[1].Detail; got != testImage+", 12 MB from the mirror mirror.test" {
		t.Errorf("detail of the pull: %q", got)
	}
	if got := list[4].End.Format(time.RFC3339Nano); got != line[:30] {
		t.Errorf("first output at %s", got)
	}
	c, err := n.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := labels(stages(t, c.Info)); got != "create web, start web, first output web, exec web*3 failed" {
		t.Errorf("stages of the container: %s", got)
	}
	plain, err := n.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: sb})
	if err != nil || plain.Info != nil {
		t.Errorf("a status that is not verbose has %v, %v", plain.GetInfo(), err)
	}
	// The next crispd knows everything except what came after the last call that made something.
	n.restart(t)
	if resp, err = n.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: sb, Verbose: true}); err != nil {
		t.Fatal(err)
	}
	again := stages(t, resp.Info)
	if got := labels(again); got != "sandbox, pull, create web, start web, first output web, create other, start other" {
		t.Errorf("stages of the pod, after a restart: %s", got)
	}
	if diff := cmp.Diff(list[:len(again)], again); diff != "" {
		t.Errorf("stages (-before +after the restart):\n%s", diff)
	}
	n.stopAndRemove(t, sb)
	if pods := n.server.startups.recorder.Pods(); len(pods) != 0 {
		t.Errorf("removed pods are remembered: %v", pods)
	}
}

// A rotated log does not start with the container's first output.
func TestFirstOutputOfRotatedLog(t *testing.T) {
	for name, rotate := range map[string]func(n *node, id, log string) error{
		"by the kubelet": func(n *node, id, _ string) error {
			n.ReopenContainerLog(t.Context(), &cri.ReopenContainerLogRequest{ContainerId: id}) // the fake may refuse
			return nil
		},
		"by the executor": func(_ *node, _, log string) error { return os.WriteFile(log+".20300102-030405.000000", nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			config := pod("a")
			config.LogDirectory = t.TempDir()
			web := forever("web")
			web.LogPath, web.Annotations = "web.log", map[string]string{crilog.AnnotationSize: "4096"}
			id := n.begin(t, n.run(t, config), web)
			log := filepath.Join(config.LogDirectory, "web.log")
			if err := rotate(n, id, log); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(log, []byte("2030-01-02T03:04:05.678901234Z stdout F hello\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			resp, err := n.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
			if err != nil {
				t.Fatal(err)
			}
			if got := labels(stages(t, resp.Info)); got != "create web, start web" {
				t.Errorf("stages: %s", got)
			}
		})
	}
}
