package api

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A page is an answer in Prometheus' text format: metrics in the order in which
// they were first added, each with its samples.
type page struct {
	order   []string
	heads   map[string]string
	samples map[string]*bytes.Buffer
}

func newPage() *page {
	return &page{heads: map[string]string{}, samples: map[string]*bytes.Buffer{}}
}

// add adds one sample. kind is counter or gauge.
func (p *page) add(name, kind, help string, labels map[string]string, value float64) {
	if p.samples[name] == nil {
		p.order = append(p.order, name)
		p.heads[name] = fmt.Sprintf("# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
		p.samples[name] = &bytes.Buffer{}
	}
	p.samples[name].WriteString(name + labelText(labels) + " " + strconv.FormatFloat(value, 'g', -1, 64) + "\n")
}

func labelText(labels map[string]string) string {
	if len(labels) == 0 {
		return ""
	}
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, key+"="+quote(labels[key]))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// quote escapes as the format says: backslash, quote and newline.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}

func (p *page) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	out := bufio.NewWriter(w)
	for _, name := range p.order {
		out.WriteString(p.heads[name])
		out.Write(p.samples[name].Bytes())
	}
	out.Flush()
}

// metrics are the agent's own.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) error {
	p := newPage()
	phases, containers := map[v1.PodPhase]int{}, map[string]int{}
	for _, o := range s.pods() {
		pod := o.(*v1.Pod)
		phases[pod.Status.Phase]++
		for _, c := range pod.Status.ContainerStatuses {
			switch {
			case c.State.Running != nil:
				containers["running"]++
			case c.State.Terminated != nil:
				containers["exited"]++
			default:
				containers["waiting"]++
			}
		}
	}
	p.add("kubelet_running_pods", "gauge", "Pods that run.", nil, float64(phases[v1.PodRunning]))
	for _, phase := range slices.Sorted(maps.Keys(phases)) {
		p.add("crisp_pods", "gauge", "Pods by phase.", map[string]string{"phase": string(phase)}, float64(phases[phase]))
	}
	for _, state := range slices.Sorted(maps.Keys(containers)) {
		p.add("kubelet_running_containers", "gauge", "Containers by state.", map[string]string{"container_state": state}, float64(containers[state]))
	}
	broken := 0
	for _, source := range s.Wanted.Sources() {
		for _, f := range source.Files {
			if f.Error != "" {
				broken++
			}
		}
	}
	p.add("crisp_manifests_broken", "gauge", "Manifests that are wrong.", nil, float64(broken))
	p.add("go_goroutines", "gauge", "Goroutines.", nil, float64(runtime.NumGoroutine()))
	if data, err := os.ReadFile("/proc/self/statm"); err == nil {
		if words := strings.Fields(string(data)); len(words) > 1 {
			if pages, err := strconv.Atoi(words[1]); err == nil {
				p.add("process_resident_memory_bytes", "gauge", "Resident memory.", nil, float64(pages*os.Getpagesize()))
			}
		}
	}
	if s.Metrics != nil {
		s.Metrics(p.add)
	}
	p.write(w)
	return nil
}

func (s *Server) probeMetrics(w http.ResponseWriter, r *http.Request) error {
	p := newPage()
	if s.ProbeMetrics != nil {
		s.ProbeMetrics(p.add)
	}
	p.write(w)
	return nil
}

// resourceMetrics are the kubelet's /metrics/resource, from CRI's statistics.
func (s *Server) resourceMetrics(w http.ResponseWriter, r *http.Request) error {
	p := newPage()
	failed := 0.0
	cpu := func(name, help string, labels map[string]string, c *CPUStats) {
		if c != nil && c.UsageCoreNanoSeconds != nil {
			p.add(name, "counter", help, labels, float64(*c.UsageCoreNanoSeconds)/float64(time.Second))
		}
	}
	gauge := func(name, help string, labels map[string]string, v *uint64) {
		if v != nil {
			p.add(name, "gauge", help, labels, float64(*v))
		}
	}
	summary, err := s.stats(r)
	if err != nil {
		failed = 1
		summary = &Summary{Node: s.nodeStats()}
	}
	started := s.containerStarts()
	for _, pod := range summary.Pods {
		of := map[string]string{"namespace": pod.PodRef.Namespace, "pod": pod.PodRef.Name}
		for _, c := range pod.Containers {
			one := map[string]string{"namespace": pod.PodRef.Namespace, "pod": pod.PodRef.Name, "container": c.Name}
			cpu("container_cpu_usage_seconds_total", "CPU time of the container.", one, c.CPU)
			if c.Memory != nil {
				gauge("container_memory_working_set_bytes", "Working set of the container.", one, c.Memory.WorkingSetBytes)
			}
			if c.Swap != nil {
				gauge("container_swap_usage_bytes", "Swap of the container.", one, c.Swap.SwapUsageBytes)
			}
			if at, ok := started[pod.PodRef.UID+"/"+c.Name]; ok {
				p.add("container_start_time_seconds", "gauge", "When the container started.", one, float64(at.UnixNano())/float64(time.Second))
			}
		}
		cpu("pod_cpu_usage_seconds_total", "CPU time of the pod.", of, pod.CPU)
		if pod.Memory != nil {
			gauge("pod_memory_working_set_bytes", "Working set of the pod.", of, pod.Memory.WorkingSetBytes)
		}
	}
	cpu("node_cpu_usage_seconds_total", "CPU time of the node.", nil, summary.Node.CPU)
	if summary.Node.Memory != nil {
		gauge("node_memory_working_set_bytes", "Working set of the node.", nil, summary.Node.Memory.WorkingSetBytes)
	}
	p.add("resource_scrape_error", "gauge", "1 if the runtime gave no statistics.", nil, failed)
	p.add("scrape_error", "gauge", "1 if the runtime gave no statistics.", nil, failed)
	p.write(w)
	return nil
}

// containerStarts is when each running container started, by the pod's UID and
// its name.
func (s *Server) containerStarts() map[string]time.Time {
	starts := map[string]time.Time{}
	for _, o := range s.pods() {
		pod := o.(*v1.Pod)
		for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
			for _, c := range list {
				if c.State.Running != nil {
					starts[string(pod.UID)+"/"+c.Name] = c.State.Running.StartedAt.Time
				}
			}
		}
	}
	return starts
}

// cadvisorMetrics are those that the runtime makes itself.
func (s *Server) cadvisorMetrics(w http.ResponseWriter, r *http.Request) error {
	runtime, _, err := s.runtime()
	if err != nil {
		return err
	}
	descriptors, err := runtime.ListMetricDescriptors(r.Context())
	if err != nil {
		return err
	}
	known := map[string]*cri.MetricDescriptor{}
	for _, d := range descriptors {
		known[d.Name] = d
	}
	pods, err := runtime.ListPodSandboxMetrics(r.Context())
	if err != nil {
		return err
	}
	p := newPage()
	add := func(m *cri.Metric) {
		d := known[m.Name]
		if d == nil {
			return
		}
		labels := map[string]string{}
		for i, key := range d.LabelKeys {
			if i < len(m.LabelValues) {
				labels[key] = m.LabelValues[i]
			}
		}
		p.add(m.Name, strings.ToLower(m.MetricType.String()), d.Help, labels, float64(m.GetValue().GetValue()))
	}
	for _, pod := range pods {
		for _, m := range pod.Metrics {
			add(m)
		}
		for _, c := range pod.ContainerMetrics {
			for _, m := range c.Metrics {
				add(m)
			}
		}
	}
	p.write(w)
	return nil
}
