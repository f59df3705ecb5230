package telemetry

import (
	"context"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/crisp-cri/crisp/internal/podtrace"
	"github.com/crisp-cri/crisp/internal/stage"
)

// In a collector the calls for a pod have one common root, which is sent once, and each call has
// its stages.
func TestRootOfPod(t *testing.T) {
	sent := tracetest.NewInMemoryExporter()
	sender := podtrace.NewWith(podtrace.Options{PerMillion: 1e6}, sdk.WithSyncer(sent))
	for i, rpc := range []string{"RunPodSandbox", "PullImage", "StartContainer"} {
		ctx, log := stage.With(context.Background(), nil)
		ctx, sp := beginSpan(ctx, sender, rpc, Pod{Key: "u 0", Name: "default/web", First: i == 0})
		stage.Next(ctx, "work")
		log.Stop()
		sp.end(Outcome{Code: "OK"}, log.Spans(), time.Now(), time.Now())
	}
	trace, root := Pod{Key: "u 0"}.IDs()
	count := map[string]int{}
	for _, s := range sent.GetSpans() {
		count[s.Name]++
		if s.SpanContext.TraceID() != trace {
			t.Errorf("%s is of the trace %s", s.Name, s.SpanContext.TraceID())
		}
		switch {
		case s.Name == "pod default/web":
			if s.SpanContext.SpanID() != root || s.Parent.IsValid() {
				t.Errorf("the root is %s, and has the parent %s", s.SpanContext.SpanID(), s.Parent.SpanID())
			}
		case s.Name != "work" && s.Parent.SpanID() != root:
			t.Errorf("%s has the parent %s", s.Name, s.Parent.SpanID())
		}
	}
	if count["pod default/web"] != 1 || count["work"] != 3 || count["PullImage"] != 1 {
		t.Errorf("spans: %v", count)
	}
}
