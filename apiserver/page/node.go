package page

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/internal/pulls"
)

// nodeFacts returns the line above the list of pods. used is what they use together.
func (s *Server) nodeFacts(ctx context.Context, node *v1.Node, pods []podRow, used sample) []fact {
	bad, all := 0, node.Status.Capacity
	for _, p := range pods {
		if p.Class != "ok" && p.Class != "done" {
			bad++
		}
	}
	list := []fact{
		{"Pods", fmt.Sprintf("%d, %d not ready", len(pods), bad)},
		{"CPU", cores(used.cpu) + " of " + all.Cpu().String()},
		{"Memory", memory(used.memory) + " of " + memory(all.Memory().AsApproximateFloat64())},
	}
	var use stats.Summary
	if s.ask(ctx, "/stats/summary", &use) == nil && use.Node.Fs != nil {
		list = append(list, fact{"Disk", pulls.Size(int64(ptr.Deref(use.Node.Fs.UsedBytes, 0))) + " used, " + pulls.Size(int64(ptr.Deref(use.Node.Fs.AvailableBytes, 0))) + " free"})
	}
	return list
}

// problems returns what is wrong with the node and with its manifests.
func (s *Server) problems(ctx context.Context, node *v1.Node) (list []string) {
	for _, c := range node.Status.Conditions {
		if ready := c.Type == v1.NodeReady; ready != (c.Status == v1.ConditionTrue) {
			list = append(list, fmt.Sprintf("%s is %s: %s %s", c.Type, c.Status, c.Reason, c.Message))
		}
	}
	var sources []source.SourceState
	_ = s.ask(ctx, "/crisp/v1/sources", &sources) // the list of pods is worth showing without
	for _, text := range source.Broken(sources) {
		list = append(list, "Broken manifest: "+text)
	}
	return list
}
