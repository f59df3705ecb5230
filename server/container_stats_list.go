package server

import (
	"context"
	"runtime"
	"sync"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/oci"
)

// ListContainerStats returns the usage of the running containers that pass the filter.
func (s *Server) ListContainerStats(_ context.Context, req *cri.ListContainerStatsRequest) (*cri.ListContainerStatsResponse, error) {
	return &cri.ListContainerStatsResponse{Stats: s.listContainerStats(req.Filter)}, nil
}

// listContainerStats reads the cgroups in parallel. CRI: "returns stats of all running
// containers."
func (s *Server) listContainerStats(f *cri.ContainerStatsFilter) []*cri.ContainerStats {
	var list []*oci.Container
	for _, c := range s.visibleContainers() {
		if isRunning(c) &&
			hasPrefix(c.ID(), f.GetId()) && hasPrefix(c.SandboxID(), f.GetPodSandboxId()) &&
			selects(f.GetLabelSelector(), s.index.container(c).config.Labels) {
			list = append(list, c)
		}
	}
	return sideBySide(list, s.containerStats)
}

func isRunning(c *oci.Container) bool {
	return containerState(c.Status().State) == cri.ContainerState_CONTAINER_RUNNING
}

// sideBySide returns f of each element, computed by one goroutine per CPU.
func sideBySide[A, B any](list []A, f func(A) B) []B {
	out := make([]B, len(list))
	n := max(1, min(runtime.GOMAXPROCS(0), len(list)))
	var wg sync.WaitGroup
	for w := range n {
		wg.Go(func() {
			for i := w; i < len(list); i += n {
				out[i] = f(list[i])
			}
		})
	}
	wg.Wait()
	return out
}
