package telemetry

import "github.com/prometheus/client_golang/prometheus"

// A State is what a scrape finds.
type State struct {
	Containers, Sandboxes map[string]int // by state
	Images                int
	Streams               int    // exec, attach and port-forward sessions
	ExecutorRestarts      uint64 // since crispd began
	EventsDropped         uint64 // subscribers of events that were too slow
}

// Watch makes each scrape call state; it must be called once.
func (t *Telemetry) Watch(state func() State) {
	if t != nil {
		t.registry.MustRegister(states(state))
	}
}

// states is a prometheus.Collector.
type states func() State

var (
	containersDesc = prometheus.NewDesc("crisp_containers", "Containers by state.", []string{"state"}, nil)
	sandboxesDesc  = prometheus.NewDesc("crisp_sandboxes", "Sandboxes by state.", []string{"state"}, nil)
	imagesDesc     = prometheus.NewDesc("crisp_images", "Images on the node.", nil, nil)
	streamsDesc    = prometheus.NewDesc("crisp_streaming_sessions", "Sessions of exec, attach and port-forward under way.", nil, nil)
	restartsDesc   = prometheus.NewDesc("crisp_executor_restarts_total", "How often the executor was lost and another one was found or started.", nil, nil)
	droppedDesc    = prometheus.NewDesc("crisp_event_subscribers_dropped_total", "Clients of GetContainerEvents that were too slow.", nil, nil)
)

// Describe implements prometheus.Collector.
func (states) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{containersDesc, sandboxesDesc, imagesDesc, streamsDesc, restartsDesc, droppedDesc} {
		c <- d
	}
}

// Collect implements prometheus.Collector.
func (f states) Collect(c chan<- prometheus.Metric) {
	s := f()
	for name, n := range s.Containers {
		c <- prometheus.MustNewConstMetric(containersDesc, prometheus.GaugeValue, float64(n), name)
	}
	for name, n := range s.Sandboxes {
		c <- prometheus.MustNewConstMetric(sandboxesDesc, prometheus.GaugeValue, float64(n), name)
	}
	c <- prometheus.MustNewConstMetric(imagesDesc, prometheus.GaugeValue, float64(s.Images))
	c <- prometheus.MustNewConstMetric(streamsDesc, prometheus.GaugeValue, float64(s.Streams))
	c <- prometheus.MustNewConstMetric(restartsDesc, prometheus.CounterValue, float64(s.ExecutorRestarts))
	c <- prometheus.MustNewConstMetric(droppedDesc, prometheus.CounterValue, float64(s.EventsDropped))
}
