package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/crisp-cri/crisp/agent"
	"github.com/crisp-cri/crisp/agent/crix"
	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A statusReport is what "crisp status" shows.
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
		if resp, err := c.ask(http.MethodGet, "/readyz", nil, nil, nil); err != nil {
			r.Agent.Health = err.Error()
		} else {
			resp.Body.Close()
			r.Agent.Health = "ok"
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
		r.Runtime.Error = crix.Fault(err).Error()
		return r
	}
	r.Runtime.Conditions, r.Runtime.Handlers, r.Runtime.Features = status.GetStatus().GetConditions(), status.GetRuntimeHandlers(), status.GetFeatures()
	if config, err := runtime.RuntimeConfig(c.ctx); err == nil {
		r.Runtime.Cgroups = strings.ToLower(config.GetLinux().GetCgroupDriver().String())
	}
	return r
}

func runStatus(c *cli, args []string) error {
	var output string
	fs := c.flags("status")
	fs.StringVar(&output, "o", "", "`form`: json or yaml")
	rest, err := c.parse(fs, args)
	if err != nil {
		return err
	}
	if len(rest) > 0 || !slices.Contains([]string{"", "json", "yaml"}, output) {
		return usageError("status takes no argument but -o json or yaml")
	}
	r := c.report()
	if output != "" {
		data, err := json.Marshal(r)
		if err != nil {
			return err
		}
		var v any
		if err := json.Unmarshal(data, &v); err != nil {
			return err
		}
		return c.printValue(v, output)
	}
	t := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	line := func(key, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", key, fmt.Sprintf(format, args...)) }
	line("agent", "%s: %s", r.Agent.Socket, or(r.Agent.Health, "unknown"))
	line("runtime", "%s %s at %s", r.Runtime.Name, r.Runtime.Version, r.Runtime.Endpoint)
	if r.Runtime.Error != "" {
		line("", "%s", r.Runtime.Error)
	}
	for _, cond := range r.Runtime.Conditions {
		line("", "%s=%v %s", cond.Type, cond.Status, strings.TrimSpace(cond.Reason+" "+cond.Message))
	}
	line("cgroups", "%s", or(r.Runtime.Cgroups, "<unknown>"))
	var handlers []string
	for _, h := range r.Runtime.Handlers {
		handlers = append(handlers, or(h.Name, "(default)"))
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

func sourceWord(s desired.SourceState, bad int) string {
	switch {
	case !s.Reported:
		return "has not been read yet"
	case bad > 0:
		return fmt.Sprintf("%d manifests, %d of them broken: see crisp sources", len(s.Files), bad)
	}
	return fmt.Sprintf("%d manifests", len(s.Files))
}

// runSources shows each manifest, what it defines, how that is, and what is wrong.
func runSources(c *cli, args []string) error {
	var output string
	fs := c.flags("sources")
	fs.StringVar(&output, "o", "", "`form`: json or yaml")
	rest, err := c.parse(fs, args)
	if err != nil {
		return err
	}
	if len(rest) > 0 || !slices.Contains([]string{"", "json", "yaml"}, output) {
		return usageError("sources takes no argument but -o json or yaml")
	}
	var sources []desired.SourceState
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
	t := tabwriter.NewWriter(c.stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "SOURCE\tMANIFEST\tOBJECT\tSTATE")
	for _, s := range sources {
		if !s.Reported {
			fmt.Fprintf(t, "%s\t\t\tnot read yet\n", s.Name)
		}
		for _, f := range s.Files {
			if f.Error != "" || len(f.Objects) == 0 {
				fmt.Fprintf(t, "%s\t%s\t\t%s\n", s.Name, f.Path, or(strings.ReplaceAll(f.Error, "\n", "; "), "empty"))
			}
			for _, o := range f.Objects {
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", s.Name, f.Path, o, or(states[o], "known"))
			}
			for _, w := range f.Warnings {
				fmt.Fprintf(t, "%s\t%s\t\twarning: %s\n", s.Name, f.Path, w)
			}
		}
	}
	return t.Flush()
}

// runDoctor checks what pods need of this node.
func runDoctor(c *cli, args []string) error {
	rest, err := c.parse(c.flags("doctor"), args)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return usageError("doctor takes no argument %q", rest[0])
	}
	bad := 0
	check := func(what string, err error, hint string) {
		word := "ok"
		if err != nil {
			word = err.Error()
			bad++
			if hint != "" {
				word += "\n            " + hint
			}
		}
		fmt.Fprintf(c.stdout, "%-10s  %s\n", what, word)
	}
	r := c.report()
	fail := func(text string) error {
		if text == "" {
			return nil
		}
		return fmt.Errorf("%s", text)
	}
	check("runtime", fail(r.Runtime.Error), "start crispd, or give --runtime-endpoint")
	for _, cond := range r.Runtime.Conditions {
		text := ""
		if !cond.Status {
			text = strings.TrimSpace(cond.Reason + " " + cond.Message)
		}
		check(cond.Type, fail(text), "")
	}
	health := r.Agent.Health
	if health == "ok" {
		health = ""
	}
	check("agent", fail(health), "start crisp agent, or set CRISP_AGENT_ROOT")
	_, err = os.Stat("/sys/fs/cgroup")
	check("cgroups", err, "mount the cgroup file system")
	_, err = exec.LookPath("nft")
	check("nft", err, "install nftables: host ports need it")
	for _, path := range []string{"/proc/sys/net/ipv4/ip_forward"} {
		data, err := os.ReadFile(path)
		if err == nil && strings.TrimSpace(string(data)) != "1" {
			err = fmt.Errorf("%s is not 1", path)
		}
		check("forwarding", err, "pods reach nothing beyond the node without")
	}
	for _, s := range r.Sources {
		for _, f := range s.Files {
			if f.Error != "" {
				check("manifest", fail(f.Error), "")
			}
		}
	}
	if bad > 0 {
		return &exitError{code: exitFailure}
	}
	return nil
}

// runConfig shows how the agent is configured, in the kubelet's words.
func runConfig(c *cli, args []string) error {
	var output string
	fs := c.flags("config")
	fs.StringVar(&output, "o", "yaml", "`form`: yaml or json")
	rest, err := c.parse(fs, args)
	if err != nil {
		return err
	}
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
}

// runCheckpoint has the runtime write a checkpoint archive of a container.
func runCheckpoint(c *cli, args []string) error {
	var namespace, container string
	fs := c.flags("checkpoint")
	namespaceFlag(fs, &namespace)
	containerFlag(fs, &container)
	rest, err := c.parse(fs, args)
	if err != nil {
		return err
	}
	if len(rest) != 1 {
		return usageError("checkpoint takes the name of one pod")
	}
	_, f, err := c.connectToPod(namespace, rest[0])
	if err != nil {
		return err
	}
	status, err := c.container(f, container)
	if err != nil {
		return err
	}
	resp, err := c.ask(http.MethodPost, "/checkpoint/"+f.Pod.Namespace+"/"+f.Pod.Name+"/"+status.Name, nil, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var answer struct{ Items []string }
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&answer); err != nil {
		return err
	}
	for _, path := range answer.Items {
		fmt.Fprintln(c.stdout, path)
	}
	return nil
}

// resources tells of each that there is any of.
func resources(list v1.ResourceList) string {
	words := []string{fmt.Sprintf("%s CPUs, %s memory, %s pods", list.Cpu(), list.Memory(), list.Pods())}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if q := list[name]; !slices.Contains([]v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourcePods}, name) && !q.IsZero() {
			words = append(words, fmt.Sprintf("%s %s", q.String(), name))
		}
	}
	return strings.Join(words, ", ")
}
