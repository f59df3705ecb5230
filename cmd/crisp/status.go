package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/apiserver"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/docker/go-units"
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
	Node    *v1.NodeStatus       `json:"node,omitempty"`
	Sources []source.SourceState `json:"sources,omitempty"`
}

func (c *cli) report() *statusReport {
	r := &statusReport{}
	r.Agent.Socket = apiserver.SocketOf(c.agentRoot)
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
	if err := c.connect(); err != nil {
		r.Runtime.Error = err.Error()
		return r
	}
	if v, err := c.runtime.Version(c.ctx, ""); err == nil {
		r.Runtime.Name, r.Runtime.Version = v.RuntimeName, v.RuntimeVersion
	}
	status, err := c.runtime.Status(c.ctx, false)
	if err != nil {
		r.Runtime.Error = criruntime.Fault(err).Error()
		return r
	}
	r.Runtime.Conditions, r.Runtime.Handlers, r.Runtime.Features = status.GetStatus().GetConditions(), status.GetRuntimeHandlers(), status.GetFeatures()
	if config, err := c.runtime.RuntimeConfig(c.ctx); err == nil {
		r.Runtime.Cgroups = strings.ToLower(config.GetLinux().GetCgroupDriver().String())
	}
	return r
}

func statusCommand(c *cli) *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "status [-o json]", Args: takesNone(""), Short: "show the agent, its runtime, the node and the sources"}
	fs := cmd.Flags()
	outputFlag(fs, &output, "json", "yaml")
	return runs(cmd, func(_ []string) error {
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
			line("source "+s.Name, "%s", sourceWord(s, len(source.Broken([]source.SourceState{s}))))
		}
		if err := t.Flush(); err != nil || r.Agent.Alive {
			return err
		}
		return &exitError{code: exitUnreachable}
	})
}

// resources lists CPUs, memory and pods, and other resources unless they are 0.
func resources(list v1.ResourceList) string {
	words := []string{fmt.Sprintf("%s CPUs, %s memory, %s pods", list.Cpu(), units.BytesSize(list.Memory().AsApproximateFloat64()), list.Pods())}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if q := list[name]; !slices.Contains([]v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourcePods}, name) && !q.IsZero() {
			text := q.String()
			if name == v1.ResourceEphemeralStorage || strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
				text = units.BytesSize(q.AsApproximateFloat64())
			}
			words = append(words, text+" "+string(name))
		}
	}
	return strings.Join(words, ", ")
}

// sourcesCommand lists each manifest with its objects, their states, and its errors.
func sourcesCommand(c *cli) *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "sources", Args: takesNone(""), Short: "show what each manifest defines, and what is wrong with it"}
	fs := cmd.Flags()
	outputFlag(fs, &output, "json", "yaml")
	return runs(cmd, func(_ []string) error {
		var sources []source.SourceState
		if err := c.fetch("/crisp/v1/sources", nil, &sources); err != nil {
			return err
		}
		if output != "" {
			return c.printValue(sources, output)
		}
		var pods v1.PodList
		if err := c.fetch("/pods", nil, &pods); err != nil {
			return err
		}
		states := map[string]string{}
		for i := range pods.Items {
			p := &pods.Items[i]
			states["pod "+p.Namespace+"/"+p.Name] = status.Word(p)
		}
		t := c.columns("SOURCE", "MANIFEST", "OBJECT", "STATE")
		for _, s := range sources {
			if !s.Reported {
				fmt.Fprintf(t, "%s\t\t\tnot read yet\n", s.Name)
			}
			for _, f := range s.Files {
				if f.Error != "" || len(f.Objects) == 0 {
					fmt.Fprintf(t, "%s\t%s\t\t%s\n", s.Name, f.Path, cmp.Or(strings.ReplaceAll(f.Error, "\n", "; "), "empty"))
				}
				for _, o := range f.Objects {
					fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", s.Name, f.Path, o, cmp.Or(states[o], "known"))
				}
				for _, w := range f.Warnings {
					fmt.Fprintf(t, "%s\t%s\t\twarning: %s\n", s.Name, f.Path, w)
				}
			}
		}
		return t.Flush()
	})
}

func sourceWord(s source.SourceState, bad int) string {
	switch {
	case !s.Reported:
		return "has not been read yet"
	case bad > 0:
		return fmt.Sprintf("%d manifests, %d of them broken: see crisp sources", len(s.Files), bad)
	}
	return fmt.Sprintf("%d manifests", len(s.Files))
}

// doctorCommand checks what pods need on this node.
func doctorCommand(c *cli) *cobra.Command {
	return runs(&cobra.Command{Use: "doctor", Args: takesNone(""), Short: "check what pods need from this node"}, func(_ []string) error {
		bad := 0
		check := func(what, wrong, hint string) {
			word := "ok"
			if wrong != "" {
				word = wrong
				bad++
				if hint != "" {
					word += "\n            " + hint
				}
			}
			fmt.Fprintf(c.stdout, "%-10s  %s\n", what, word)
		}
		r := c.report()
		check("runtime", r.Runtime.Error, "start crispd, or give --runtime-endpoint")
		for _, cond := range r.Runtime.Conditions {
			wrong := ""
			if !cond.Status {
				wrong = strings.TrimSpace(cond.Reason + " " + cond.Message)
			}
			check(cond.Type, wrong, "")
		}
		check("agent", strings.TrimPrefix(r.Agent.Health, "ok"), "start crisp agent, or set CRISP_AGENT_ROOT")
		_, err := os.Stat("/sys/fs/cgroup")
		check("cgroups", textOfError(err), "mount the cgroup file system")
		_, err = exec.LookPath("nft")
		check("nft", textOfError(err), "install nftables: host ports need it")
		const forwarding = "/proc/sys/net/ipv4/ip_forward"
		data, err := os.ReadFile(forwarding)
		var pods v1.PodList
		_ = c.fetch("/pods", nil, &pods)
		first := r.Runtime.Name == "crisp" && len(pods.Items) == 0 // crispd sets it with the first pod
		if err == nil && strings.TrimSpace(string(data)) != "1" && !first {
			err = errors.New(forwarding + " is not 1")
		}
		check("forwarding", textOfError(err), "pods reach nothing beyond the node without")
		for _, text := range c.brokenManifests() {
			check("manifest", text, "")
		}
		others := map[string]int{}
		if r.Runtime.Error == "" {
			sandboxes, _ := c.runtime.ListPodSandbox(c.ctx, nil)
			for _, s := range sandboxes {
				others[s.Labels[podspec.LabelAgent]]++
			}
		}
		delete(others, "")
		delete(others, podfiles.AgentID(c.agentRoot))
		for _, id := range slices.Sorted(maps.Keys(others)) {
			check("pods", fmt.Sprintf("%d are another agent's, %s", others[id], id), "start it with its --root, or: crictl rmp -f $(crictl pods -q --label "+podspec.LabelAgent+"="+id+")")
		}
		if bad > 0 {
			return &exitError{code: exitFailure}
		}
		return nil
	})
}

// brokenManifests says what is wrong with each, as far as an agent answers.
func (c *cli) brokenManifests() (texts []string) {
	var sources []source.SourceState
	_ = c.fetch("/crisp/v1/sources", nil, &sources)
	for _, text := range source.Broken(sources) {
		texts = append(texts, strings.ReplaceAll(text, "\n", "; "))
	}
	return texts
}

func textOfError(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// configCommand shows the agent's configuration in the form of the kubelet's.
func configCommand(c *cli) *cobra.Command {
	output := "yaml"
	cmd := &cobra.Command{Use: "config view", Short: "show how the agent is configured", ValidArgs: []string{"view"}}
	fs := cmd.Flags()
	outputFlag(fs, &output, "yaml", "json")
	return runs(cmd, func(rest []string) error {
		if len(rest) != 1 || rest[0] != "view" {
			return usageError("config takes: view")
		}
		var config struct {
			Kubelet map[string]any `json:"kubeletconfig"`
		}
		if err := c.fetch("/configz", nil, &config); err != nil {
			return err
		}
		return c.printValue(config.Kubelet, output)
	})
}

// pageCommand prints a URL that opens the agent's page in a browser, once. The agent issues it to
// any client of its socket.
func pageCommand(c *cli) *cobra.Command {
	return runs(&cobra.Command{Use: "page", Args: takesNone(""), Short: "print a link that opens the agent's page in a browser once"}, func(_ []string) error {
		resp, err := c.ask(http.MethodPost, "/crisp/v1/page", nil, nil)
		if errors.Is(err, fault.NotFound) {
			return fault.NotFound.Errorf("the agent has no page: it has one with --page and --listen 127.0.0.1:PORT")
		}
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(c.stdout, resp.Body)
		return err
	})
}
