package test

import (
	"context"
	"fmt"
	"slices"

	"github.com/rogpeppe/go-internal/testscript"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// stats is "sandbox stats NAME": the groups of statistics of the sandbox and its containers
// that have a time, and "nothing" for a group without one.
func (n *node) stats(ctx context.Context, ts *testscript.TestScript, id string) error {
	resp, err := n.runtime().PodSandboxStats(ctx, &cri.PodSandboxStatsRequest{PodSandboxId: id})
	if err != nil {
		return err
	}
	group := func(name string, at int64, what any) {
		if at <= 0 {
			what = "nothing"
		}
		fmt.Fprintf(ts.Stdout(), "%s: %v\n", name, what)
	}
	l := resp.Stats.Linux
	group("sandbox cpu", l.Cpu.GetTimestamp(), l.Cpu.GetUsageCoreNanoSeconds().GetValue() > 0)
	group("sandbox memory", l.Memory.GetTimestamp(), l.Memory.GetWorkingSetBytes().GetValue() > 0)
	group("sandbox processes", l.Process.GetTimestamp(), l.Process.GetProcessCount().GetValue() > 0)
	group("sandbox network", l.Network.GetTimestamp(), l.Network.GetDefaultInterface().GetName())
	group("sandbox io", l.Io.GetTimestamp(), true)
	for _, c := range l.Containers {
		group("container cpu", c.Cpu.GetTimestamp(), c.Cpu.GetUsageCoreNanoSeconds().GetValue() > 0 && c.Cpu.UsageNanoCores != nil)
		group("container memory", c.Memory.GetTimestamp(), c.Memory.GetRssBytes().GetValue() > 0)
		group("container swap", c.Swap.GetTimestamp(), c.Swap.SwapUsageBytes != nil)
		group("container io", c.Io.GetTimestamp(), true)
		group("container writable layer", c.WritableLayer.GetTimestamp(), c.WritableLayer.GetFsId().GetMountpoint() != "")
	}
	return nil
}

// metrics is "sandbox metrics NAME": the names of its metrics with values, after a check
// that all labels have a value.
func (n *node) metrics(ctx context.Context, ts *testscript.TestScript, id string) error {
	described, err := n.runtime().ListMetricDescriptors(ctx, &cri.ListMetricDescriptorsRequest{})
	if err != nil {
		return err
	}
	keys := make(map[string]int)
	for _, d := range described.Descriptors {
		keys[d.Name] = len(d.LabelKeys)
	}
	list, err := n.runtime().ListPodSandboxMetrics(ctx, &cri.ListPodSandboxMetricsRequest{})
	if err != nil {
		return err
	}
	var names []string
	for _, p := range list.PodMetrics {
		if p.PodSandboxId != id {
			continue
		}
		all := p.Metrics
		for _, c := range p.ContainerMetrics {
			all = slices.Concat(all, c.Metrics)
		}
		for _, m := range all {
			if len(m.LabelValues) != keys[m.Name] || m.Value == nil {
				return fmt.Errorf("metric %s has labels %v for %d keys, and value %v", m.Name, m.LabelValues, keys[m.Name], m.Value)
			}
			names = append(names, m.Name)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		fmt.Fprintln(ts.Stdout(), name)
	}
	return nil
}
