package server

import (
	"path/filepath"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/oci/wire"
	"github.com/crisp-cri/crisp/test/ocitest"
)

// A bug in any part that a call uses fails that call. It ends no daemon, and keeps no name, no lock
// and nothing frozen: the same call succeeds when the bug does not show, and all can be removed.
func TestPanicKeepsNothing(t *testing.T) {
	type failing func(n *node, method string, err error)
	network := func(n *node, method string, err error) { n.net.failing(method, err) }
	store := func(n *node, method string, err error) { n.store.failing(method, err) }
	executor := func(n *node, method string, err error) { n.machine.Fail(method, err) }
	for method, set := range map[string]failing{
		"Attach": network, "Detach": network, "Mount": store, "Unmount": store, "Diff": store,
		wire.MethodRun: executor, wire.MethodPodInit: executor, wire.MethodExec: executor, wire.MethodUpdate: executor,
		wire.MethodFreeze: executor, wire.MethodCheckpoint: executor, wire.MethodDelete: executor,
	} {
		t.Run(method, func(t *testing.T) {
			n := newNode(t)
			config := pod("web")
			config.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD
			failed := 0
			try := func(what string, call func() error) bool {
				t.Helper()
				err := call()
				if err != nil {
					failed++
					wantCode(t, what, err, "Unknown")
					set(n, method, nil)
					if what == "run" {
						config.Metadata.Attempt++ // the sandbox may be there still
					}
					err = call()
				}
				if err != nil {
					t.Errorf("%s does not work after a panic: %v", what, err)
				}
				return err == nil
			}
			set(n, method, ocitest.ErrPanic)
			var sb, id string
			if !try("run", func() (err error) {
				r, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: config})
				sb = r.GetPodSandboxId()
				return err
			}) || !try("create and start", func() error {
				c, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb, Config: forever("app"), SandboxConfig: config})
				if err != nil {
					return err
				}
				id = c.ContainerId
				if _, err = n.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: id}); err != nil {
					second(n.RemoveContainer(t.Context(), &cri.RemoveContainerRequest{ContainerId: id}))
				}
				return err
			}) {
				return
			}
			for what, call := range map[string]func() error{
				"exec": func() error {
					return second(n.ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"testbin", "exit", "0"}}))
				},
				"update": func() error {
					return second(n.UpdateContainerResources(t.Context(), &cri.UpdateContainerResourcesRequest{
						ContainerId: id, Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}}))
				},
				"checkpoint": func() error {
					return second(n.CheckpointContainer(t.Context(), &cri.CheckpointContainerRequest{
						ContainerId: id, Location: filepath.Join(t.TempDir(), "c.tar")}))
				},
			} {
				try(what, call)
				n.wantThawed(t)
			}
			pods, err := n.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for _, sb := range pods.Items {
				try("stop", func() error {
					return second(n.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: sb.Id}))
				})
				try("remove", func() error {
					return second(n.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: sb.Id}))
				})
			}
			if failed == 0 {
				t.Errorf("%s was not called", method)
			}
			n.wantNothingLeft(t)
		})
	}
}
