// Package telemetry reports on crispd's own work: metrics for Prometheus and traces for a
// collector that speaks OTLP.
//
// Both are created where a call begins and ends, in the server's interceptor, from package
// stage's record of the call; nothing below the server knows of either. States, as opposed to
// events (such as how many containers run), are collected at each scrape.
//
// The names follow Prometheus' conventions: seconds, bytes, _total. Labels have few values: a
// method, a status code, a stage; never a name or an ID. Only images being pulled have series of
// their own, which end with the pull.
package telemetry

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/crisp-cri/crisp/internal/podtrace"
	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/crisp-cri/crisp/internal/stage"
)

// Buckets of all histograms, in seconds: a list takes some microseconds, an exec ten
// milliseconds, a pull minutes.
var buckets = []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}

// Options are the arguments of New.
type Options struct {
	Version string
	Traces  Traces
	Log     *slog.Logger
}

// A Telemetry has the metrics and traces of one crispd. A nil one only records stages for the
// log.
type Telemetry struct {
	log      *slog.Logger
	version  string
	registry *prometheus.Registry
	tracing  atomic.Pointer[podtrace.Sender] // nil = off
	calls    sync.Map                        // *Call → struct{}: those under way

	rpcs      *prometheus.HistogramVec // rpc, code
	inFlight  *prometheus.GaugeVec     // rpc
	stages    *prometheus.HistogramVec // rpc, stage
	abandoned *prometheus.CounterVec   // rpc, stage
	pulls     *prometheus.CounterVec   // result
	pulled    prometheus.Counter
	ooms      prometheus.Counter
}

// New creates the metrics, and connects to the collector if one is configured; it need not be up
// yet.
func New(o Options) (*Telemetry, error) {
	t := &Telemetry{log: o.Log, version: o.Version, registry: prometheus.NewRegistry()}
	t.rpcs = histogram("crisp_rpc_duration_seconds", "How long calls of CRI took, by method and status code.", "rpc", "code")
	t.inFlight = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "crisp_rpc_in_flight", Help: "Calls of CRI under way."}, []string{"rpc"})
	t.stages = histogram("crisp_stage_duration_seconds", "How long the stages of calls took: cni is ADD in RunPodSandbox and DEL in StopPodSandbox, cni.NAME one plugin.", "rpc", "stage")
	t.abandoned = counters("crisp_rpc_abandoned_total", "Calls whose client gave up, by their stage at that time.", "rpc", "stage")
	t.pulls = counters("crisp_image_pulls_total", "Pulls of images by their end: success, or why there was none.", "result")
	t.pulled = prometheus.NewCounter(prometheus.CounterOpts{Name: "crisp_image_pulled_bytes_total", Help: "Compressed bytes of layers that pulls have read."})
	t.ooms = prometheus.NewCounter(prometheus.CounterOpts{Name: "crisp_container_oom_events_total", Help: "OOM kills within containers."})
	build := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "crisp_build_info", Help: "Always 1; the label is the version.", ConstLabels: prometheus.Labels{"version": o.Version}},
		func() float64 { return 1 })
	for _, c := range []prometheus.Collector{
		t.rpcs, t.inFlight, t.stages, t.abandoned, t.pulls, t.pulled, t.ooms, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := t.registry.Register(c); err != nil {
			return nil, err
		}
	}
	return t, t.Trace(o.Traces)
}

func histogram(name, help string, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// Handler serves scrapes.
func (t *Telemetry) Handler() http.Handler {
	return promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// OOM counts one kill by the OOM killer.
func (t *Telemetry) OOM() {
	if t != nil {
		t.ooms.Inc()
	}
}

// Close sends the remaining spans.
func (t *Telemetry) Close() error {
	if t == nil {
		return nil
	}
	return t.Trace(Traces{})
}

// A Call is one RPC in flight.
type Call struct {
	RPC   string
	Begin time.Time

	t      *Telemetry
	stages *stage.Log
	span   *span // nil = not traced
}

// Begin begins the call of an RPC, for a pod or none. Stages entered with the returned context
// belong to it.
func (t *Telemetry) Begin(ctx context.Context, rpc string, pod Pod) (context.Context, *Call) {
	c := &Call{RPC: rpc, Begin: time.Now(), t: t}
	var observe stage.Observer
	if t != nil {
		t.inFlight.WithLabelValues(rpc).Inc()
		observe = func(name string, took time.Duration) {
			t.stages.WithLabelValues(rpc, name).Observe(took.Seconds())
		}
		ctx, c.span = beginSpan(ctx, t.tracing.Load(), rpc, pod)
	}
	ctx, c.stages = stage.With(ctx, observe)
	if t != nil {
		t.calls.Store(c, struct{}{})
	}
	return ctx, c
}

// Stages returns the record of the call's stages.
func (c *Call) Stages() *stage.Log { return c.stages }

// TraceID returns the ID of the call's trace; "" if it is not recorded.
func (c *Call) TraceID() string { return c.span.traceID() }

// An Outcome describes how a call ended.
type Outcome struct {
	Code   string // of gRPC: "OK", "NotFound"
	Err    error
	Attrs  []any  // as for slog: what the call was about
	Result string // of a pull: success, or why not
	Left   bool   // the client did not wait for the end
}

// End ends the call; it returns how long it took, and each stage's share of that.
func (c *Call) End(o Outcome) (took time.Duration, shares []stage.Share) {
	end := time.Now()
	took = end.Sub(c.Begin)
	open := stage.Open(c.stages.Spans()) // before Stop: this is where the caller gave up
	c.stages.Stop()
	spans := c.stages.Spans()
	shares = stage.Shares(spans, c.Begin, end)
	if c.t == nil {
		return took, shares
	}
	c.t.calls.Delete(c)
	c.t.inFlight.WithLabelValues(c.RPC).Dec()
	c.t.rpcs.WithLabelValues(c.RPC, o.Code).Observe(took.Seconds())
	if o.Left {
		c.t.abandoned.WithLabelValues(c.RPC, open).Inc()
	}
	if o.Result != "" {
		c.t.pulls.WithLabelValues(o.Result).Inc()
	}
	if c.RPC == "PullImage" {
		c.t.pulled.Add(float64(c.stages.Counted(Bytes)))
	}
	c.span.end(o, spans, c.Begin, end)
	return took, shares
}

// Bytes is the name of the count of a pull's bytes.
const Bytes = "bytes"

// ServeCalls serves the list of calls in flight, oldest first, with their current stages: the
// first thing to look at when a node hangs.
func (t *Telemetry) ServeCalls(w http.ResponseWriter, _ *http.Request) {
	var list []*Call
	t.calls.Range(func(c, _ any) bool {
		list = append(list, c.(*Call))
		return true
	})
	slices.SortFunc(list, func(a, b *Call) int { return cmp.Compare(a.Begin.UnixNano(), b.Begin.UnixNano()) })
	out := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(out, "RPC\tFOR\tSTAGE")
	for _, c := range list {
		spans := c.stages.Spans()
		at := cmp.Or(stage.Open(spans), "-")
		if part := stage.OpenPart(spans); part != "" {
			at += ": " + part
		}
		fmt.Fprintf(out, "%s\t%s\t%s\n", c.RPC, time.Since(c.Begin).Round(time.Millisecond), at)
	}
	_ = out.Flush() // the client may have disconnected
}

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
