package telemetry

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// A Pod is whom a call is for. The calls for one pod are one trace, so that it can be seen
// where the pod's time went, unless their caller has a trace of his own. The IDs of that trace
// and of its root follow from the pod's key: no call need know of another.
type Pod struct {
	Key   string // distinguishes the pod, and the attempts of its sandbox; "" = none
	Name  string // namespace/name
	First bool   // the call is the first of the pod: the root of the trace is sent with it
}

// ids returns the IDs of the pod's trace and of its root.
func (p Pod) ids() (t trace.TraceID, s trace.SpanID) {
	sum := sha256.Sum256([]byte("crisp pod " + p.Key))
	copy(t[:], sum[:len(t)])
	copy(s[:], sum[len(t):])
	return t, s
}

// context returns the root of the pod's trace, as the parent of a call. The sampler decides by
// the trace's ID: all calls of the pod are recorded, or none.
func (p Pod) context(sampler sdk.Sampler) trace.SpanContext {
	c := trace.SpanContextConfig{Remote: true}
	c.TraceID, c.SpanID = p.ids()
	if sampler.ShouldSample(sdk.SamplingParameters{TraceID: c.TraceID}).Decision == sdk.RecordAndSample {
		c.TraceFlags = trace.FlagsSampled
	}
	return trace.NewSpanContext(c)
}

// root sends the root of the pod's trace. What follows the first call begins after its end, as
// OpenTelemetry allows: when the pod ends is not known yet.
func (p Pod) root(tracer trace.Tracer, begin, end time.Time) {
	ctx := context.WithValue(context.Background(), podKey{}, p)
	_, sp := tracer.Start(ctx, "pod "+p.Name, trace.WithNewRoot(), trace.WithTimestamp(begin))
	sp.SetAttributes(attribute.String("pod", p.Name))
	sp.End(trace.WithTimestamp(end))
}

type podKey struct{}

// podIDs are the IDs of new spans: random ones, but for the root of a pod's trace.
type podIDs struct{}

// NewIDs implements sdk.IDGenerator.
func (g podIDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	if p, ok := ctx.Value(podKey{}).(Pod); ok {
		return p.ids()
	}
	var t trace.TraceID
	rand.Read(t[:]) // it never fails
	return t, g.NewSpanID(ctx, t)
}

// NewSpanID implements sdk.IDGenerator.
func (podIDs) NewSpanID(context.Context, trace.TraceID) trace.SpanID {
	var s trace.SpanID
	rand.Read(s[:])
	return s
}
