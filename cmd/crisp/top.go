package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/apiserver/startup"
	"github.com/crisp-cri/crisp/internal/waterfall"
	"github.com/docker/go-units"
	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"
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
	var sel selection
	var containers bool
	cmd := &cobra.Command{Use: "top pods [NAME] [--containers] | node | startup [-A]", Short: "show what pods or the node use, or how long startups took", ValidArgs: []string{"pods", "node"}}
	cmd.AddCommand(topStartupCommand(c))
	fs := cmd.Flags()
	sel.flags(fs)
	fs.BoolVar(&containers, "containers", false, "show each container")
	return runs(cmd, func(rest []string) error {
		if len(rest) == 1 && (rest[0] == "node" || rest[0] == "nodes") {
			return c.topNode()
		}
		if len(rest) > 2 || len(rest) > 0 && rest[0] != "pods" && rest[0] != "pod" {
			return usageError("top takes: pods [NAME], node, or startup")
		}
		selector, err := labels.Parse(sel.selector)
		if err != nil {
			return usageError("-l %s: %v", sel.selector, err)
		}
		if err := c.connect(); err != nil {
			return err
		}
		first, err := criruntime.PodStats(c.ctx, c.runtime)
		if err != nil {
			return err
		}
		// The runtime may not have a rate yet, so it is computed from two samples.
		second := first
		if slices.ContainsFunc(first, func(s *cri.PodSandboxStats) bool { return s.GetLinux().GetCpu().GetUsageNanoCores() == nil }) {
			time.Sleep(500 * time.Millisecond)
			if second, err = criruntime.PodStats(c.ctx, c.runtime); err != nil {
				return err
			}
		}
		second = slices.DeleteFunc(slices.Clone(second), func(s *cri.PodSandboxStats) bool { return !selector.Matches(labels.Set(s.GetAttributes().GetLabels())) })
		t := newTable(c.stdout)
		heads := []string{"POD"}
		if containers {
			heads = append(heads, "NAME")
		}
		row(t, sel.all, "NAMESPACE", append(heads, "CPU(cores)", "MEMORY(bytes)"))
		for _, l := range loadsOf(first, second, containers) {
			if !sel.has(l.namespace) || len(rest) == 2 && l.pod != rest[1] {
				continue
			}
			cells := []string{l.pod}
			if containers {
				cells = append(cells, l.container)
			}
			row(t, sel.all, l.namespace, append(cells, fmt.Sprintf("%dm", (l.cores+999_999)/1_000_000), fmt.Sprintf("%dMi", l.bytes()>>20)))
		}
		return t.Flush()
	})
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

// mostStages is the maximum number of stages listed for a pod.
const mostStages = 3

// topStartupCommand lists pods by the time until they were ready.
func topStartupCommand(c *cli) *cobra.Command {
	var namespace string
	var all bool
	cmd := &cobra.Command{Use: "startup [-A]", Args: takesNone(""), Short: "show which pods took longest to become ready, and why", DisableFlagsInUseLine: true}
	namespaceFlag(cmd.Flags(), &namespace)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "pods of all namespaces")
	return runs(cmd, func(_ []string) error {
		var list struct{ Items []startup.Report }
		if err := c.fetch("/crisp/v1/startup", nil, &list); err != nil {
			return err
		}
		now := time.Now()
		reports := slices.DeleteFunc(list.Items, func(r startup.Report) bool { return !all && r.Pod.Namespace != namespace })
		slices.SortStableFunc(reports, func(a, b startup.Report) int {
			return cmp.Compare(b.Until(now).Sub(b.Seen), a.Until(now).Sub(a.Seen))
		})
		t := newTable(c.stdout)
		row(t, all, "NAMESPACE", []string{"POD", "START-UP", "READY", "MOSTLY"})
		for _, r := range reports {
			ready := "yes"
			if r.Ready.IsZero() {
				ready = "no"
			}
			row(t, all, r.Pod.Namespace, []string{r.Pod.Name, waterfall.Brief(r.Until(now).Sub(r.Seen)), ready, mostly(r, now)})
		}
		return t.Flush()
	})
}

// mostly lists the longest stages of a pod's start.
func mostly(r startup.Report, now time.Time) string {
	var words []string
	for _, s := range waterfall.Sum(r.Stages, r.Seen, r.Until(now)) {
		if len(words) < mostStages && s.Took > 0 {
			words = append(words, s.Name+" "+waterfall.Brief(s.Took))
		}
	}
	return strings.Join(words, ", ")
}

// statsInterval is the refresh interval of stats, and the window of its rates.
const statsInterval = time.Second

// statsOptions has the flags of stats.
type statsOptions struct {
	selection
	once, containers bool
}

// statsCommand shows the resource usage of pods, and refreshes it.
func statsCommand(c *cli) *cobra.Command {
	var o statsOptions
	cmd := &cobra.Command{Use: "stats [POD...] [-l SELECTOR] [--no-stream] [--containers]", Short: "show what pods use, updated every second", ValidArgsFunction: c.completePods}
	fs := cmd.Flags()
	o.flags(fs)
	fs.BoolVar(&o.once, "no-stream", false, "show it once")
	fs.BoolVar(&o.containers, "containers", false, "show each container")
	cmd.RunE = func(_ *cobra.Command, rest []string) error { return c.stats(rest, o) }
	return cmd
}

func (c *cli) stats(args []string, o statsOptions) error {
	if len(args) > 0 {
		if _, err := c.selected(args, o.selection); err != nil { // a missing pod is an error at once
			return err
		}
	}
	selector, err := labels.Parse(o.selector)
	if err != nil {
		return usageError("-l %s: %v", o.selector, err)
	}
	if err := c.connect(); err != nil {
		return err
	}
	before, err := criruntime.PodStats(c.ctx, c.runtime)
	if err != nil {
		return err
	}
	for {
		select {
		case <-c.ctx.Done():
			return nil
		case <-time.After(statsInterval):
		}
		now, err := criruntime.PodStats(c.ctx, c.runtime)
		if err != nil {
			if c.ctx.Err() != nil {
				return nil
			}
			return err
		}
		if !o.once && terminal(c.stdout) != nil {
			fmt.Fprint(c.stdout, "\x1b[H\x1b[2J") // clear the screen
		}
		t := newTable(c.stdout)
		heads := []string{"POD", "CPU %", "MEMORY", "LIMIT", "MEMORY %", "NET IN / OUT", "PIDS"}
		if o.containers {
			heads = []string{"POD", "CONTAINER", "CPU %", "MEMORY", "LIMIT", "MEMORY %"}
		}
		row(t, o.all, "NAMESPACE", heads)
		for _, s := range now {
			m := s.GetAttributes().GetMetadata()
			if !o.has(m.GetNamespace()) || !selector.Matches(labels.Set(s.GetAttributes().GetLabels())) || !named(args, s.GetAttributes()) {
				continue
			}
			for _, cells := range statsCells(before, s, o.containers) {
				row(t, o.all, m.GetNamespace(), cells)
			}
		}
		if err := t.Flush(); err != nil || o.once {
			return err
		}
		before = now
	}
}

// named reports whether the arguments select a pod; without arguments they select all.
func named(args []string, of *cri.PodSandboxAttributes) bool {
	list, _ := objectNames(args, true) // they were parsed before
	pod := &metav1.ObjectMeta{Namespace: of.GetMetadata().GetNamespace(), Name: of.GetMetadata().GetName(), Annotations: of.GetAnnotations()}
	return len(args) == 0 || slices.ContainsFunc(list, func(t objectName) bool { return t.covers(pod) })
}

// statsCells returns the rows of a pod, or of its containers.
func statsCells(before []*cri.PodSandboxStats, s *cri.PodSandboxStats, containers bool) [][]string {
	var rows [][]string
	for _, l := range loadsOf(before, []*cri.PodSandboxStats{s}, containers) {
		limit, share := l.limit()
		cells := []string{fmt.Sprintf("%.2f%%", float64(l.cores)/1e7), units.BytesSize(float64(l.bytes())), limit, share}
		if containers {
			rows = append(rows, slices.Concat([]string{l.pod, l.container}, cells))
			continue
		}
		n := s.GetLinux().GetNetwork().GetDefaultInterface()
		net := size(n.GetRxBytes().GetValue()) + " / " + size(n.GetTxBytes().GetValue())
		rows = append(rows, slices.Concat([]string{l.pod}, cells, []string{net, fmt.Sprint(s.GetLinux().GetProcess().GetProcessCount().GetValue())}))
	}
	return rows
}

// limit returns the memory limit, and the share in use; "-" without a limit.
func (l load) limit() (limit, share string) {
	used, free := l.bytes(), l.memory.GetAvailableBytes().GetValue()
	if free == 0 {
		return "-", "-"
	}
	return units.BytesSize(float64(used + free)), fmt.Sprintf("%.1f%%", 100*float64(used)/float64(used+free))
}
