package test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/test/testenv"
)

// withShim returns what startNode does to a node in order that its handler "shim" is runc's, for
// "shims", or gVisor's, for "gvisor"; nothing for "". The test needs what it names.
func withShim(t *testing.T, kind string) func(n *node, config string) error {
	return func(n *node, config string) error {
		shims := testenv.Shims()
		text := fmt.Sprintf("[handlers.shim]\nshim = %q\n", filepath.Join(shims, "containerd-shim-runc-v2"))
		switch kind {
		case "":
			return nil
		case "gvisor":
			root, options := filepath.Join(n.dir, "runsc"), filepath.Join(n.dir, "runsc.toml")
			text = fmt.Sprintf("[handlers.shim]\nshim = %q\noptions = %q\n", testenv.GVisorShim(), options)
			if err := os.WriteFile(options, fmt.Appendf(nil, "binary_name = %q\nroot = %q\n", filepath.Join(shims, "runsc"), root), 0o600); err != nil {
				return err
			}
			n.hasGVisor(t, root)
		}
		n.afterPods = append(n.afterPods, testenv.RemoveShimDirsNow)
		f, err := os.OpenFile(config, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteString(text)
		return err
	}
}

// hasGVisor is for a node with gVisor, whose state is below root. At the node's end it removes what
// gVisor keeps of pods: a mount, and directories for the shims' sockets.
func (n *node) hasGVisor(t testing.TB, root string) {
	testenv.Hierarchies(t, false)
	n.afterPods = append(n.afterPods, testenv.RemoveShimDirsNow, func() {
		mounts, _ := filepath.Glob(filepath.Join(root, "*/null-netns"))
		for _, mount := range mounts {
			_ = syscall.Unmount(mount, syscall.MNT_DETACH)
		}
	})
}

// shimRuntime is a runtime with a handler for all pods.
type shimRuntime struct {
	cri.RuntimeServiceClient
}

// RunPodSandbox implements cri.RuntimeServiceClient.
func (r shimRuntime) RunPodSandbox(ctx context.Context, req *cri.RunPodSandboxRequest, opts ...grpc.CallOption) (*cri.RunPodSandboxResponse, error) {
	req.RuntimeHandler = "shim"
	return r.RuntimeServiceClient.RunPodSandbox(ctx, req, opts...)
}
