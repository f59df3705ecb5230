package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// statsInterval is the refresh interval of stats, and the window of its rates.
const statsInterval = time.Second

// statsOptions has the flags of stats.
type statsOptions struct {
	scope
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
		if _, err := c.selected(args, o.scope); err != nil { // a missing pod is an error at once
			return err
		}
	}
	selector, err := labels.Parse(o.selector)
	if err != nil {
		return usageError("-l %s: %v", o.selector, err)
	}
	runtime, _, err := c.connect()
	if err != nil {
		return err
	}
	before, err := criruntime.PodStats(c.ctx, runtime)
	if err != nil {
		return err
	}
	for {
		select {
		case <-c.ctx.Done():
			return nil
		case <-time.After(statsInterval):
		}
		now, err := criruntime.PodStats(c.ctx, runtime)
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
	list, _ := targets(args, true) // they were parsed before
	pod := &metav1.ObjectMeta{Namespace: of.GetMetadata().GetNamespace(), Name: of.GetMetadata().GetName(), Annotations: of.GetAnnotations()}
	return len(args) == 0 || slices.ContainsFunc(list, func(t target) bool { return t.covers(pod) })
}

// statsCells returns the rows of a pod, or of its containers.
func statsCells(before []*cri.PodSandboxStats, s *cri.PodSandboxStats, containers bool) [][]string {
	var rows [][]string
	for _, l := range loadsOf(before, []*cri.PodSandboxStats{s}, containers) {
		limit, share := l.limit()
		cells := []string{fmt.Sprintf("%.2f%%", float64(l.cores)/1e7), size(l.bytes()), limit, share}
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
	return size(used + free), fmt.Sprintf("%.1f%%", 100*float64(used)/float64(used+free))
}
