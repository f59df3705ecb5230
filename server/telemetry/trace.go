package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"github.com/crisp-cri/crisp/internal/podtrace"
	"github.com/crisp-cri/crisp/internal/stage"
)

// A Pod is the pod that a call serves.
type Pod = podtrace.Pod

// Traces says which calls are traced, and where to send the spans.
type Traces struct {
	// Endpoint is the collector: "host:port" or "http://host:port" for unencrypted
	// gRPC, "https://host:port", or "unix:///path". "" means none: nothing is
	// traced.
	Endpoint string
	// PerMillion is how many of a million calls begin a trace. A call that belongs to its
	// caller's trace is sampled if that is: the kubelet decides for its own.
	PerMillion int
}

// Trace replaces the configuration of the traces.
func (t *Telemetry) Trace(o Traces) error {
	var next *podtrace.Sender
	if o.Endpoint != "" {
		var err error
		next, err = podtrace.New(podtrace.Options{Endpoint: o.Endpoint, PerMillion: o.PerMillion, Service: "crispd", Version: t.version, Log: t.log})
		if err != nil {
			return err
		}
	}
	return t.tracing.Swap(next).Close()
}

// span is the span of one call. It is nil if the call is not recorded.
type span struct {
	tracer trace.Tracer
	ctx    context.Context
	span   trace.Span
	pod    *Pod // this is the first call of its trace; nil = of no pod's
}

// beginSpan begins the span of a call, which belongs to its caller's trace if the request says so by
// W3C Trace Context.
//
// A call for a pod that belongs to no trace joins the pod's, see Pod.
func beginSpan(ctx context.Context, t *podtrace.Sender, rpc string, pod Pod) (context.Context, *span) {
	if t == nil {
		return ctx, nil
	}
	of, fields := propagation.TraceContext{}, propagation.MapCarrier{}
	for _, key := range of.Fields() {
		if v := metadata.ValueFromIncomingContext(ctx, key); len(v) > 0 {
			fields[key] = v[0]
		}
	}
	ctx = of.Extract(ctx, fields)
	own := pod.Key != "" && !trace.SpanContextFromContext(ctx).IsValid()
	if own {
		ctx = trace.ContextWithRemoteSpanContext(ctx, pod.Root(t.Sampler))
	}
	ctx, sp := t.Tracer.Start(ctx, rpc, trace.WithSpanKind(trace.SpanKindServer))
	if !sp.IsRecording() {
		return ctx, nil
	}
	s := &span{tracer: t.Tracer, ctx: ctx, span: sp}
	if own && pod.First {
		s.pod = &pod
	}
	return ctx, s
}

func (s *span) traceID() string {
	if s == nil {
		return ""
	}
	return s.span.SpanContext().TraceID().String()
}

// end ends the span, with its stages as children and their parts as grandchildren.
func (s *span) end(o Outcome, spans []stage.Span, begin, end time.Time) {
	if s == nil {
		return
	}
	parent := s.ctx
	for _, st := range spans {
		from, to := st.Begin, st.End
		if to.IsZero() {
			to = end
		}
		under := s.ctx
		if st.Part {
			under = parent
		}
		ctx, child := s.tracer.Start(under, st.Name, trace.WithTimestamp(from))
		child.End(trace.WithTimestamp(to))
		if !st.Part {
			parent = ctx
		}
	}
	s.span.SetAttributes(attribute.String("rpc.system", "grpc"), attribute.String("rpc.grpc.status", o.Code))
	s.span.SetAttributes(attributes(o.Attrs)...)
	if o.Err != nil {
		s.span.SetStatus(codes.Error, o.Err.Error())
	}
	s.span.End(trace.WithTimestamp(end))
	if s.pod != nil {
		s.pod.SendRoot(s.tracer, begin, end)
	}
}

// attributes converts slog's key-value pairs to attributes of a span.
func attributes(pairs []any) []attribute.KeyValue {
	var list []attribute.KeyValue
	for i := 0; i+1 < len(pairs); i += 2 {
		key, ok := pairs[i].(string)
		value, is := pairs[i+1].(string)
		if ok && is {
			list = append(list, attribute.String(key, value))
		}
	}
	return list
}
