package main

import (
	"context"
	"os"
	"path/filepath"
)

// The module that holds the agent against the kubelet, which is no package of ours:
// its dependencies are gigabytes, so it goes along only where make test-kubelet has
// fetched and built them.
const (
	kubeletTests = "test/kubelet"
	builtKubelet = ".cache/kubelet"
)

// takeKubelet takes along what the step "kubelet" needs, if that runs.
func (o options) takeKubelet(ctx context.Context, dir string) error {
	if wanted, err := o.wants("kubelet"); err != nil || !wanted {
		return err
	}
	if _, err := os.Stat(builtKubelet); err != nil {
		return nil // the step says so
	}
	if err := copyFile(builtKubelet, filepath.Join(dir, "bin", "kubelet"), 0o755); err != nil {
		return err
	}
	return goCommand(ctx, os.Environ(), "-C", kubeletTests, "test", "-c", "-ldflags", "-s -w", "-o", filepath.Join(dir, "src", kubeletTests, "package.test"), ".")
}

// comparison is that of the agent with the kubelet: cgroups are made otherwise by
// systemd and on cgroup v2 than on the machine that runs make test-kubelet.
type comparison struct{}

func (comparison) do(g *guest) error {
	if _, err := os.Stat(filepath.Join(g.payload, "bin", "kubelet")); err != nil {
		g.result.Skipped = append(g.result.Skipped, "kubelet: it was not built: make test-kubelet")
		return nil
	}
	return all(kubeletTests, "").do(g)
}
