package api

import (
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/procfs"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// A page is a response in one of Prometheus' formats. It is a prometheus.Collector.
type page struct{ metrics []prometheus.Metric }

// add adds one sample. kind is counter or gauge.
func (p *page) add(name, kind, help string, labels map[string]string, value float64) {
	p.addAt(name, kind, help, labels, value, time.Time{})
}

// addAt adds one sample, measured at a given time; zero means now.
func (p *page) addAt(name, kind, help string, labels map[string]string, value float64, at time.Time) {
	keys := slices.Sorted(maps.Keys(labels))
	values := make([]string, len(keys))
	for i, key := range keys {
		values[i] = labels[key]
	}
	of := prometheus.GaugeValue
	if kind == "counter" {
		of = prometheus.CounterValue
	}
	desc := prometheus.NewDesc(name, help, keys, nil)
	m, err := prometheus.NewConstMetric(desc, of, value, values...)
	switch {
	case err != nil: // a label is not UTF-8
		m = prometheus.NewInvalidMetric(desc, err)
	case !at.IsZero():
		m = prometheus.NewMetricWithTimestamp(at, m)
	}
	p.metrics = append(p.metrics, m)
}

// Describe describes nothing: the metrics depend on the pods.
func (p *page) Describe(chan<- *prometheus.Desc) {}

func (p *page) Collect(to chan<- prometheus.Metric) {
	for _, m := range p.metrics {
		to <- m
	}
}

// write answers, with more after the page; a sample that is wrong leaves the others alone.
func (p *page) write(w http.ResponseWriter, r *http.Request, more ...prometheus.Gatherer) error {
	registry := prometheus.NewRegistry()
	if err := registry.Register(p); err != nil {
		return err
	}
	promhttp.HandlerFor(append(prometheus.Gatherers{registry}, more...), promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP(w, r)
	return nil
}

// metrics answers with the agent's own metrics.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) error {
	p := &page{}
	phases, containers := map[v1.PodPhase]int{}, map[string]int{}
	for _, p := range s.sources.pods() {
		now := p.currentStatus()
		phases[now.Phase]++
		for _, c := range now.ContainerStatuses {
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
	for _, source := range s.o.Wanted.Sources() {
		for _, f := range source.Files {
			if f.Error != "" {
				broken++
			}
		}
	}
	p.add("crisp_manifests_broken", "gauge", "Manifests that are wrong.", nil, float64(broken))
	p.add("go_goroutines", "gauge", "Goroutines.", nil, float64(runtime.NumGoroutine()))
	if self, err := procfs.Self(); err == nil {
		if stat, err := self.Stat(); err == nil {
			p.add("process_resident_memory_bytes", "gauge", "Resident memory.", nil, float64(stat.ResidentMemory()))
		}
	}
	return p.write(w, r, s.o.Metrics)
}

func (s *Server) probeMetrics(w http.ResponseWriter, r *http.Request) error {
	return new(page).write(w, r, s.o.ProbeMetrics)
}

// resourceMetrics is the kubelet's /metrics/resource, from CRI's statistics.
func (s *Server) resourceMetrics(w http.ResponseWriter, r *http.Request) error {
	p := &page{}
	failed := 0.0
	cpu := func(name, help string, labels map[string]string, c *stats.CPUStats) {
		if c != nil && c.UsageCoreNanoSeconds != nil {
			p.add(name, "counter", help, labels, float64(*c.UsageCoreNanoSeconds)/float64(time.Second))
		}
	}
	gauge := func(name, help string, labels map[string]string, v *uint64) {
		if v != nil {
			p.add(name, "gauge", help, labels, float64(*v))
		}
	}
	summary, err := s.podStats(r.Context())
	if err != nil {
		failed = 1
		summary = &stats.Summary{Node: s.NodeStats()}
	}
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
			if !c.StartTime.IsZero() {
				p.add("container_start_time_seconds", "gauge", "When the container started.", one, float64(c.StartTime.UnixNano())/float64(time.Second))
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
	return p.write(w, r)
}

// cadvisorMetrics passes on the metrics that the runtime generates.
func (s *Server) cadvisorMetrics(w http.ResponseWriter, r *http.Request) error {
	client, _, err := s.Runtime()
	if err != nil {
		return err
	}
	descriptors, err := client.ListMetricDescriptors(r.Context())
	if err != nil {
		return err
	}
	known := map[string]*cri.MetricDescriptor{}
	for _, d := range descriptors {
		known[d.Name] = d
	}
	pods, err := client.ListPodSandboxMetrics(r.Context())
	if err != nil {
		return err
	}
	p := &page{}
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
		var at time.Time // 0 means that it was measured for this answer (CRI, Metric)
		if m.Timestamp != 0 {
			at = time.Unix(0, m.Timestamp)
		}
		p.addAt(m.Name, strings.ToLower(m.MetricType.String()), d.Help, labels, float64(m.GetValue().GetValue()), at)
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
	return p.write(w, r)
}
