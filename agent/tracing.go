package agent

import "github.com/crisp-cri/crisp/internal/podtrace"

// Tracing configures the OpenTelemetry collector that gets the stages of pods' starts as spans.
// crispd sends its calls likewise: a pod's spans from both form one trace if both sample at the
// same rate.
type Tracing struct {
	Endpoint          string // host:port, an http or https URL, or unix:///path; "" for no tracing
	SamplesPerMillion int    // how many of a million pods are traced
}

func (o *Options) openTraces() (err error) {
	if o.Tracing.Endpoint == "" {
		return nil
	}
	o.traces, err = podtrace.New(podtrace.Options{
		Endpoint: o.Tracing.Endpoint, PerMillion: o.Tracing.SamplesPerMillion, Service: "crisp-agent", Version: o.Serve.Version, Log: o.Log,
	})
	return err
}

// closeTraces sends the last spans.
func (o *Options) closeTraces() {
	if err := o.traces.Close(); err != nil {
		o.Log.Warn("spans were not sent", "err", err)
	}
}
