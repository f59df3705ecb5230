// Package podtrace sends spans to an OpenTelemetry collector, all spans of one pod as one trace.
// crispd sends the work of its calls for the pod, the agent its own work and waits, and neither
// knows of the other: the IDs of the trace and of its root are derived from the pod, and so is
// whether it is sampled, if both use the same rate.
package podtrace

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
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

// flushTime bounds how long a daemon waits for the collector when it exits.
const flushTime = 2 * time.Second

// complaintEvery is how often the log says that the collector does not respond.
const complaintEvery = 10 * time.Minute

// Options say which traces begin here, and where to send the spans.
type Options struct {
	// Endpoint is the collector: "host:port" or "http://host:port" for unencrypted
	// gRPC, "https://host:port", or "unix:///path".
	Endpoint string
	// PerMillion is how many traces of a million are sampled.
	PerMillion int
	Service    string // the name of the program
	Version    string
	Log        *slog.Logger
}

// A Sender creates spans and sends them in the background. While the collector does not accept
// them it keeps some, and drops later ones.
type Sender struct {
	Tracer   trace.Tracer
	Sampler  sdk.Sampler // for traces that begin here
	provider *sdk.TracerProvider
}

// New connects to the collector, which need not be up yet.
func New(o Options) (*Sender, error) {
	url := o.Endpoint
	if strings.HasPrefix(url, "unix:") {
		// OTLP's URLs cannot name unix sockets; the option for host:port passes its text to
		// gRPC, which accepts them.
		return to(o, otlptracegrpc.WithEndpoint(url), otlptracegrpc.WithInsecure())
	}
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	return to(o, otlptracegrpc.WithEndpointURL(url))
}

func to(o Options, where ...otlptracegrpc.Option) (*Sender, error) {
	exporter, err := otlptracegrpc.New(context.Background(), where...)
	if err != nil {
		return nil, fmt.Errorf("send traces to %s: %w", o.Endpoint, err)
	}
	otel.SetErrorHandler(complain(o.Log))
	return NewWith(o, sdk.WithBatcher(exporter)), nil
}

// NewWith is New with another exporter.
func NewWith(o Options, send sdk.TracerProviderOption) *Sender {
	sampler := sdk.TraceIDRatioBased(float64(o.PerMillion) / 1e6)
	provider := sdk.NewTracerProvider(
		send,
		sdk.WithSampler(sdk.ParentBased(sampler)),
		sdk.WithIDGenerator(IDs{}),
		sdk.WithResource(resource.NewSchemaless(
			attribute.String("service.name", o.Service), attribute.String("service.version", o.Version))),
	)
	return &Sender{Tracer: provider.Tracer("github.com/crisp-cri/crisp"), Sampler: sampler, provider: provider}
}

// Close sends the last spans, for at most two seconds.
func (s *Sender) Close() error {
	if s == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	if err := s.provider.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("send the last spans: %w", err)
	}
	return nil
}

// complain logs the collector's failures, at most once per complaintEvery.
func complain(log *slog.Logger) otel.ErrorHandlerFunc {
	var last atomic.Int64
	return func(err error) {
		now := time.Now().UnixNano()
		if before := last.Load(); now-before > int64(complaintEvery) && last.CompareAndSwap(before, now) {
			log.Warn("spans were not sent", "err", err)
		}
	}
}
