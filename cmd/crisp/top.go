package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A load is the resource usage of a pod or container.
type load struct {
	namespace, pod, container string
	cores                     uint64 // nanocores
	memory                    *cri.MemoryUsage
}

// bytes returns the working set.
func (l load) bytes() uint64 { return l.memory.GetWorkingSetBytes().GetValue() }

// topCommand prints the resource usage of pods from the runtime, without an agent. Its subcommands
// node and startup need one.
func topCommand(c *cli) *cobra.Command {
	var sc scope
	var containers bool
	cmd := &cobra.Command{Use: "top pods [NAME] [--containers] | node | startup [-A]", Short: "show what pods or the node use, or how long startups took", ValidArgs: []string{"pods", "node"}}
	cmd.AddCommand(topStartupCommand(c))
	fs := cmd.Flags()
	sc.flags(fs)
	fs.BoolVar(&containers, "containers", false, "show each container")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		if len(rest) == 1 && (rest[0] == "node" || rest[0] == "nodes") {
			return c.topNode()
		}
		if len(rest) > 2 || len(rest) > 0 && rest[0] != "pods" && rest[0] != "pod" {
			return usageError("top takes: pods [NAME], node, or startup")
		}
		selector, err := labels.Parse(sc.selector)
		if err != nil {
			return usageError("-l %s: %v", sc.selector, err)
		}
		runtime, _, err := c.connect()
		if err != nil {
			return err
		}
		first, err := criruntime.PodStats(c.ctx, runtime)
		if err != nil {
			return err
		}
		// The runtime may not have a rate yet, so it is computed from two samples.
		second := first
		if slices.ContainsFunc(first, func(s *cri.PodSandboxStats) bool { return s.GetLinux().GetCpu().GetUsageNanoCores() == nil }) {
			time.Sleep(500 * time.Millisecond)
			if second, err = criruntime.PodStats(c.ctx, runtime); err != nil {
				return err
			}
		}
		second = slices.DeleteFunc(slices.Clone(second), func(s *cri.PodSandboxStats) bool { return !selector.Matches(labels.Set(s.GetAttributes().GetLabels())) })
		t := newTable(c.stdout)
		heads := []string{"POD"}
		if containers {
			heads = append(heads, "NAME")
		}
		row(t, sc.all, "NAMESPACE", append(heads, "CPU(cores)", "MEMORY(bytes)"))
		for _, l := range loadsOf(first, second, containers) {
			if !sc.has(l.namespace) || len(rest) == 2 && l.pod != rest[1] {
				continue
			}
			cells := []string{l.pod}
			if containers {
				cells = append(cells, l.container)
			}
			row(t, sc.all, l.namespace, append(cells, fmt.Sprintf("%dm", (l.cores+999_999)/1_000_000), fmt.Sprintf("%dMi", l.bytes()>>20)))
		}
		return t.Flush()
	}
	return cmd
}

func loadsOf(first, second []*cri.PodSandboxStats, containers bool) []load {
	rates := criruntime.Rates(first, second)
	var loads []load
	for _, s := range second {
		m := s.GetAttributes().GetMetadata()
		if !containers {
			loads = append(loads, load{m.GetNamespace(), m.GetName(), "", rates[s.GetAttributes().GetId()], s.GetLinux().GetMemory()})
			continue
		}
		for _, c := range s.GetLinux().GetContainers() {
			if c.GetCpu() == nil && c.GetMemory() == nil {
				continue // not running; containerd lists such containers too
			}
			name := c.GetAttributes().GetMetadata().GetName()
			loads = append(loads, load{m.GetNamespace(), m.GetName(), name, rates[c.GetAttributes().GetId()], c.GetMemory()})
		}
	}
	slices.SortFunc(loads, func(a, b load) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.pod, b.pod), cmp.Compare(a.container, b.container))
	})
	return loads
}
