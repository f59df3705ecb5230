package server

import (
	"context"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/oci"
)

// ListPodSandboxMetrics returns the usage of the ready sandboxes and their containers, as
// metrics for dashboards.
func (s *Server) ListPodSandboxMetrics(context.Context, *cri.ListPodSandboxMetricsRequest) (*cri.ListPodSandboxMetricsResponse, error) {
	return &cri.ListPodSandboxMetricsResponse{PodMetrics: s.listSandboxMetrics()}, nil
}

func (s *Server) listSandboxMetrics() []*cri.PodSandboxMetrics {
	ready := slices.DeleteFunc(s.visibleSandboxes(), func(sb *oci.Sandbox) bool { return sb.State() != oci.SandboxReady })
	return sideBySide(ready, s.metricsOf)
}

func (s *Server) metricsOf(sb *oci.Sandbox) *cri.PodSandboxMetrics {
	meta := s.index.sandbox(sb).config.GetMetadata()
	out := &cri.PodSandboxMetrics{PodSandboxId: sb.ID()}
	if !sb.Config().HostNetwork {
		if list, err := s.interfaces.read(sb); err == nil {
			base := []string{"", sb.CgroupPath(), sandboxImage, sb.ID(), meta.GetNamespace(), meta.GetName()}
			out.Metrics = measure(sandboxMetrics, &sample{net: list}, base)
		}
	}
	for _, c := range sb.Containers() {
		if s.isHidden(c) {
			continue
		}
		stats, err := c.Stats()
		if err != nil {
			continue // it does not run
		}
		rec := s.index.container(c)
		name := rec.config.GetMetadata().GetName()
		base := []string{name, c.CgroupPath(), s.containerImage(rec).Image, c.ID(), meta.GetNamespace(), meta.GetName()}
		out.ContainerMetrics = append(out.ContainerMetrics, &cri.ContainerMetrics{
			ContainerId: c.ID(),
			Metrics:     measure(containerMetrics, s.sample(c, rec, stats), base),
		})
	}
	return out
}

// sample gathers the measurements that a container's metrics are computed from.
func (s *Server) sample(c *oci.Container, rec *containerRecord, stats oci.Stats) *sample {
	m := &sample{stats: stats, status: c.Status(), limits: rec.resources}
	if n, ok := s.ooms.Load(c.ID()); ok {
		m.ooms = n.(*atomic.Uint64).Load()
	}
	m.processes = countProcesses(m.status.Pid)
	m.disks = disks(sysBlock, stats.IO.Devices)
	m.used, _, _ = s.rootfs.Usage(c.ID()) // 0 while it is unknown
	_ = unix.Statfs(s.imageRoot(), &m.fs) // zero while it is unknown
	return m
}

// measure computes metrics from one sample. It leaves the time 0, which CRI defines as "gathered
// live".
func measure(metrics []metric, s *sample, base []string) []*cri.Metric {
	var list []*cri.Metric
	for _, m := range metrics {
		for _, p := range m.values(s) {
			list = append(list, &cri.Metric{
				Name: m.name, MetricType: m.kind, LabelValues: slices.Concat(base, p.labels), Value: value(p.value),
			})
		}
	}
	return list
}
