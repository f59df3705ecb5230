package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/crisp-cri/crisp/agent"
	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A statusReport is the output of "crisp status".
type statusReport struct {
	Agent struct {
		Socket string `json:"socket"`
		Alive  bool   `json:"alive"`
		Health string `json:"health,omitempty"`
	} `json:"agent"`
	Runtime struct {
		Endpoint   string                  `json:"endpoint"`
		Name       string                  `json:"name,omitempty"`
		Version    string                  `json:"version,omitempty"`
		Error      string                  `json:"error,omitempty"`
		Conditions []*cri.RuntimeCondition `json:"conditions,omitempty"`
		Handlers   []*cri.RuntimeHandler   `json:"handlers,omitempty"`
		Features   *cri.RuntimeFeatures    `json:"features,omitempty"`
		Cgroups    string                  `json:"cgroupDriver,omitempty"`
	} `json:"runtime"`
	Node    *v1.NodeStatus        `json:"node,omitempty"`
	Sources []desired.SourceState `json:"sources,omitempty"`
}

func (c *cli) report() *statusReport {
	r := &statusReport{}
	r.Agent.Socket = agent.SocketOf(c.agentRoot)
	var n v1.NodeList
	if err := c.fetch("/api/v1/nodes", nil, &n); err != nil {
		r.Agent.Health = err.Error()
	} else {
		r.Agent.Alive = true
		if len(n.Items) > 0 {
			r.Node = &n.Items[0].Status
		}
		r.Agent.Health = "ok"
		if err := c.fetch("/readyz", nil, nil); err != nil {
			r.Agent.Health = err.Error()
		}
		if err := c.fetch("/crisp/v1/sources", nil, &r.Sources); err != nil {
			r.Agent.Health = err.Error()
		}
	}
	r.Runtime.Endpoint = c.endpoint
	runtime, _, err := c.connect()
	if err != nil {
		r.Runtime.Error = err.Error()
		return r
	}
	if v, err := runtime.Version(c.ctx, ""); err == nil {
		r.Runtime.Name, r.Runtime.Version = v.RuntimeName, v.RuntimeVersion
	}
	status, err := runtime.Status(c.ctx, false)
	if err != nil {
		r.Runtime.Error = criruntime.Fault(err).Error()
		return r
	}
	r.Runtime.Conditions, r.Runtime.Handlers, r.Runtime.Features = status.GetStatus().GetConditions(), status.GetRuntimeHandlers(), status.GetFeatures()
	if config, err := runtime.RuntimeConfig(c.ctx); err == nil {
		r.Runtime.Cgroups = strings.ToLower(config.GetLinux().GetCgroupDriver().String())
	}
	return r
}

func statusCommand(c *cli) *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "status [-o json]", Args: takesNone(""), Short: "show the agent, its runtime, the node and the sources"}
	fs := cmd.Flags()
	outputFlag(fs, &output, "json", "yaml")
	cmd.RunE = func(_ *cobra.Command, rest []string) error {
		r := c.report()
		if output != "" {
			v, err := plainValue(r)
			if err != nil {
				return err
			}
			return c.printValue(v, output)
		}
		t := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
		line := func(key, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", key, fmt.Sprintf(format, args...)) }
		line("agent", "%s: %s", r.Agent.Socket, cmp.Or(r.Agent.Health, "unknown"))
		line("runtime", "%s %s at %s", r.Runtime.Name, r.Runtime.Version, r.Runtime.Endpoint)
		if r.Runtime.Error != "" {
			line("", "%s", r.Runtime.Error)
		}
		for _, cond := range r.Runtime.Conditions {
			line("", "%s=%v %s", cond.Type, cond.Status, strings.TrimSpace(cond.Reason+" "+cond.Message))
		}
		line("cgroups", "%s", cmp.Or(r.Runtime.Cgroups, "<unknown>"))
		var handlers []string
		for _, h := range r.Runtime.Handlers {
			handlers = append(handlers, cmp.Or(h.Name, "(default)"))
		}
		line("handlers", "%s", strings.Join(handlers, ", "))
		if n := r.Node; n != nil {
			line("capacity", "%s", resources(n.Capacity))
			line("allocatable", "%s", resources(n.Allocatable))
			for _, cond := range n.Conditions {
				line("node", "%s=%s %s", cond.Type, cond.Status, strings.TrimSpace(cond.Reason+" "+cond.Message))
			}
		}
		for _, s := range r.Sources {
			bad := 0
			for _, f := range s.Files {
				if f.Error != "" {
					bad++
				}
			}
			line("source "+s.Name, "%s", sourceWord(s, bad))
		}
		return t.Flush()
	}
	return cmd
}

// resources lists CPUs, memory and pods, and other resources unless they are 0.
func resources(list v1.ResourceList) string {
	words := []string{fmt.Sprintf("%s CPUs, %s memory, %s pods", list.Cpu(), list.Memory(), list.Pods())}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if q := list[name]; !slices.Contains([]v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourcePods}, name) && !q.IsZero() {
			words = append(words, fmt.Sprintf("%s %s", q.String(), name))
		}
	}
	return strings.Join(words, ", ")
}
