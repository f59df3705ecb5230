package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/crisp-cri/crisp/internal/pulls"
)

// A State has the values that a scrape collects.
type State struct {
	Containers, Sandboxes map[string]int // by state
	Images                int
	Streams               int    // exec, attach and port-forward sessions
	ExecutorRestarts      uint64 // since crispd began
	EventsDropped         uint64 // subscribers of events that were too slow
	Pulls                 []pulls.Pull
}

// Watch makes each scrape call state, and examine the process that executor returns; there are
// no metrics of it while executor returns an error. It must be called once.
func (t *Telemetry) Watch(state func() State, executor func() (pid int, err error)) {
	if t != nil {
		t.registry.MustRegister(states(state),
			collectors.NewProcessCollector(collectors.ProcessCollectorOpts{PidFn: executor, Namespace: "crisp_executor"}))
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
	pullBytesDesc  = prometheus.NewDesc("crisp_image_pull_bytes", "Bytes that have come, of an image that is being pulled.", []string{"image"}, nil)
	pullSizeDesc   = prometheus.NewDesc("crisp_image_pull_size_bytes", "Bytes that have to come, of an image that is being pulled.", []string{"image"}, nil)
	pullRateDesc   = prometheus.NewDesc("crisp_image_pull_rate_bytes_per_second", "How fast an image comes that is being pulled.", []string{"image"}, nil)
	droppedDesc    = prometheus.NewDesc("crisp_event_subscribers_dropped_total", "Clients of GetContainerEvents that were too slow.", nil, nil)
)

// Describe implements prometheus.Collector.
func (states) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{containersDesc, sandboxesDesc, imagesDesc, streamsDesc, restartsDesc, droppedDesc, pullBytesDesc, pullSizeDesc, pullRateDesc} {
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
	collectPulls(c, s.Pulls)
}

// maxPullSeries bounds the number of images with their own series.
const maxPullSeries = 100

// collectPulls reports the progress of pulls. Two pulls of one image, with the credentials of
// two callers, are one series: that of the first.
func collectPulls(c chan<- prometheus.Metric, list []pulls.Pull) {
	seen := make(map[string]bool)
	for _, p := range list {
		if seen[p.Image] || len(seen) == maxPullSeries {
			continue
		}
		seen[p.Image] = true
		c <- prometheus.MustNewConstMetric(pullBytesDesc, prometheus.GaugeValue, float64(p.Bytes), p.Image)
		c <- prometheus.MustNewConstMetric(pullRateDesc, prometheus.GaugeValue, p.Rate, p.Image)
		if p.AllKnown {
			c <- prometheus.MustNewConstMetric(pullSizeDesc, prometheus.GaugeValue, float64(p.Total), p.Image)
		}
	}
}
