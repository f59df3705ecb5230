package main

import (
	"context"
	"os"
	"path/filepath"
)

// The module that compares the agent with the kubelet is not one of our packages. Its dependencies
// take gigabytes, so it is in the payload only if make test-kubelet has fetched and built them.
const (
	kubeletTests = "test/kubelet"
	builtKubelet = ".cache/kubelet"
)

// takeKubelet adds what comparisons need, if one is selected.
func (o options) takeKubelet(ctx context.Context, dir string) error {
	wanted, err := o.wants(func(s step) bool {
		_, is := s.do.(comparison)
		return is
	})
	if err != nil || !wanted {
		return err
	}
	if _, err := os.Stat(builtKubelet); err != nil {
		return nil // the step reports it
	}
	if err := copyFile(builtKubelet, filepath.Join(dir, "bin", "kubelet"), 0o755); err != nil {
		return err
	}
	return goCommand(ctx, os.Environ(), "-C", kubeletTests, "test", "-c", "-ldflags", "-s -w", "-o", filepath.Join(dir, "src", kubeletTests, "package.test"), ".")
}

// A comparison runs tests of that module: with systemd and cgroup v2 the cgroups differ from those
// on a machine that runs make test-kubelet.
type comparison struct{ tests }

func (c comparison) do(g *guest) error {
	if _, err := os.Stat(filepath.Join(g.payload, "bin", "kubelet")); err != nil {
		g.result.Skipped = append(g.result.Skipped, "kubelet: it was not built: make test-kubelet")
		return nil
	}
	c.env = append(c.env, "VIEWS="+g.logs) // the results of TestMetrics are copied out with the logs
	return c.tests.do(g)
}
