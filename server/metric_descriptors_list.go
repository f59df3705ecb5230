package server

import (
	"context"
	"slices"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ListMetricDescriptors describes the metrics of ListPodSandboxMetrics. CRI:
// "This list should be static at startup."
func (s *Server) ListMetricDescriptors(context.Context, *cri.ListMetricDescriptorsRequest) (*cri.ListMetricDescriptorsResponse, error) {
	resp := new(cri.ListMetricDescriptorsResponse)
	for _, m := range slices.Concat(containerMetrics, sandboxMetrics) {
		resp.Descriptors = append(resp.Descriptors, &cri.MetricDescriptor{
			Name: m.name, Help: m.help, LabelKeys: slices.Concat(baseLabels, m.labels),
		})
	}
	return resp, nil
}
