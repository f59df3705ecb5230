package kubelet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app/util/runtime"
)

// kubeadm's own code makes the calls of its preflight checks and of `kubeadm reset`, each with a
// timeout of two seconds. A reset stops running pods, and leaves none.
func TestKubeadm(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it runs containers")
	}
	n := startNode(t, "kubeadm")
	runtime := kubeadm.NewContainerRuntime("unix://" + filepath.Join(n.dir, "crispd.sock"))
	check(t, runtime.Connect())
	defer runtime.Close(context.Background())
	check(t, runtime.IsRunning())
	if ok, err := runtime.IsRuntimeConfigImplemented(); !ok {
		t.Errorf("the kubelet cannot ask for the cgroup driver: %v", err)
	}
	if image, err := runtime.SandboxImage(); err == nil {
		t.Errorf("there is no pause image, but kubeadm would compare its own with %q, and warn", image)
	}
	check(t, runtime.PullImagesInParallel([]string{testImage}, true)) // the image is present; pulling it would fail

	const pods = 5
	for i := range pods {
		n.stubborn(fmt.Sprintf("pod-%d", i))
	}
	ids, err := runtime.ListKubeContainers()
	if len(ids) != pods {
		t.Fatalf("kubeadm lists %d pods, want %d (%v)", len(ids), pods, err)
	}
	check(t, runtime.RemoveContainers(ids))
	if left, err := n.sandboxes("", false); len(left) > 0 || err != nil {
		t.Errorf("reset left %v (%v)", left, err)
	}
}

// stubborn runs a pod of two containers that ignore SIGTERM, without the proxy.
func (n *node) stubborn(name string) {
	n.t.Helper()
	runtime, ctx := cri.NewRuntimeServiceClient(n.conn), n.t.Context()
	config := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "kube-system", Uid: name},
		LogDirectory: filepath.Join(n.dir, "logs", name),
		Linux:        &cri.LinuxPodSandboxConfig{CgroupParent: n.parent()},
	}
	sandbox, err := runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	check(n.t, err)
	for _, c := range []string{"a", "b"} {
		created, err := runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: sandbox.PodSandboxId, SandboxConfig: config, Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: c}, Image: &cri.ImageSpec{Image: testImage}, LogPath: c + ".log", Args: []string{"ignore-term", "sleep", "for-ever"},
		}})
		check(n.t, err)
		_, err = runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: created.ContainerId})
		check(n.t, err)
	}
}
