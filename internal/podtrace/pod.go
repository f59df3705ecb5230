// Package podtrace sends spans to an OpenTelemetry collector, all spans of one pod as one trace.
// crispd sends the work of its calls for the pod, the agent its own work and waits, and neither
// knows of the other: the IDs of the trace and of its root are derived from the pod, and so is
// whether it is sampled, if both use the same rate.
package podtrace

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// A Pod is the pod that a call serves. The calls for one pod form one trace, which shows where
// the pod's time went, unless their caller has a trace of its own. The IDs of that trace and of
// its root are derived from the pod's key, so calls need not know of each other.
type Pod struct {
	Key   string // identifies the pod and the attempt of its sandbox, see Key; "" = none
	Name  string // namespace/name
	First bool   // the call is the pod's first: the root of the trace is sent with it
}

// Key returns the key of a pod with this UID and of one attempt of its sandbox.
func Key(uid string, attempt uint32) string { return fmt.Sprint(uid, " ", attempt) }

// IDs returns the IDs of the pod's trace and of its root.
func (p Pod) IDs() (t trace.TraceID, s trace.SpanID) {
	sum := sha256.Sum256([]byte("crisp pod " + p.Key))
	copy(t[:], sum[:len(t)])
	copy(s[:], sum[len(t):])
	return t, s
}

// Root returns the root of the pod's trace, as the parent of other spans. The sampler decides by
// the trace's ID: all spans of the pod are recorded, or none.
func (p Pod) Root(sampler sdk.Sampler) trace.SpanContext {
	c := trace.SpanContextConfig{Remote: true}
	c.TraceID, c.SpanID = p.IDs()
	if sampler.ShouldSample(sdk.SamplingParameters{TraceID: c.TraceID}).Decision == sdk.RecordAndSample {
		c.TraceFlags = trace.FlagsSampled
	}
	return trace.NewSpanContext(c)
}

// SendRoot sends the root of the pod's trace. Later calls begin after its end, as OpenTelemetry
// allows: the end of the pod is not known yet.
func (p Pod) SendRoot(tracer trace.Tracer, begin, end time.Time) {
	ctx := context.WithValue(context.Background(), podKey{}, p)
	_, sp := tracer.Start(ctx, "pod "+p.Name, trace.WithNewRoot(), trace.WithTimestamp(begin))
	sp.SetAttributes(attribute.String("pod", p.Name))
	sp.End(trace.WithTimestamp(end))
}

type podKey struct{}

// IDs generates the IDs of new spans: random, except for the root of a pod's trace.
type IDs struct{}

// NewIDs implements sdk.IDGenerator.
func (g IDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	if p, ok := ctx.Value(podKey{}).(Pod); ok {
		return p.IDs()
	}
	var t trace.TraceID
	rand.Read(t[:]) // it never fails
	return t, g.NewSpanID(ctx, t)
}

// NewSpanID implements sdk.IDGenerator.
func (IDs) NewSpanID(context.Context, trace.TraceID) trace.SpanID {
	var s trace.SpanID
	rand.Read(s[:])
	return s
}
