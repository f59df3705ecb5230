package podtrace

import (
	"context"
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
