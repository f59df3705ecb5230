package main

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"
)

// topNode prints the usage of the node as a share of what pods can have.
func (c *cli) topNode() error {
	var nodes v1.NodeList
	if err := c.fetch("/api/v1/nodes", nil, &nodes); err != nil {
		return err
	}
	var first, second stats.Summary
	if err := c.fetch("/stats/summary", nil, &first); err != nil {
		return err
	}
	time.Sleep(500 * time.Millisecond)
	if err := c.fetch("/stats/summary", nil, &second); err != nil {
		return err
	}
	cores, memory := 0.0, uint64(0)
	if a, b := first.Node.CPU, second.Node.CPU; a != nil && b != nil && b.Time.After(a.Time.Time) {
		cores = float64(ptr.Deref(b.UsageCoreNanoSeconds, 0)-ptr.Deref(a.UsageCoreNanoSeconds, 0)) / float64(b.Time.Sub(a.Time.Time))
	}
	if m := second.Node.Memory; m != nil {
		memory = ptr.Deref(m.WorkingSetBytes, 0)
	}
	t := c.columns("NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)")
	for _, n := range nodes.Items {
		share := func(used float64, name v1.ResourceName) string {
			q := n.Status.Allocatable[name]
			if q.IsZero() {
				return "-"
			}
			return fmt.Sprintf("%.0f%%", 100*used/q.AsApproximateFloat64())
		}
		row(t, false, "", []string{n.Name, fmt.Sprintf("%.0fm", cores*1000), share(cores, v1.ResourceCPU), fmt.Sprintf("%dMi", memory>>20), share(float64(memory), v1.ResourceMemory)})
	}
	return t.Flush()
}
