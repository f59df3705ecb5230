package startup

import (
	"context"
	"time"

	"github.com/crisp-cri/crisp/internal/podtrace"
	"github.com/crisp-cri/crisp/internal/timeline"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"
)

// untilReady is the name of the agent's span of a pod, from when the pod was seen until it was
// ready. Its parent, like that of crispd's calls, is the root of the pod's trace, which crispd
// sends; its children are the stages.
const untilReady = "until ready"

// send sends the spans of a pod that has become ready, or that was removed before it was ready,
// once. It sends none for a pod that already ran before this agent.
func (k *Keeper) send(uid types.UID) {
	if k.Traces == nil {
		return
	}
	k.mu.Lock()
	rec := k.pods[uid]
	if rec == nil || rec.sent || !rec.acted {
		k.mu.Unlock()
		return
	}
	rec.sent = true
	r, attempt := *rec, rec.attempt
	k.mu.Unlock()
	end := Report{Ready: r.ready}.Until(time.Now())
	pod := podtrace.Pod{Key: podtrace.Key(r.pod.UID, attempt), Name: r.pod.String()}
	tracer := k.Traces.Tracer
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), pod.Root(k.Traces.Sampler))
	ctx, top := tracer.Start(ctx, untilReady, trace.WithTimestamp(r.seen))
	top.SetAttributes(attribute.String("pod", pod.Name), attribute.String("pod.uid", r.pod.UID))
	if r.ready.IsZero() {
		top.SetStatus(codes.Error, "it was never ready")
	}
	for _, s := range k.recorder.Of(r.pod.UID) {
		if s.Begin.After(end) {
			continue
		}
		_, span := tracer.Start(ctx, s.Name, trace.WithTimestamp(s.Begin))
		describe(span, s)
		at := s.End
		if at.IsZero() || at.After(end) {
			at = end
		}
		span.End(trace.WithTimestamp(at))
	}
	top.End(trace.WithTimestamp(end))
}

// describe sets a span's attributes and status from a stage.
func describe(span trace.Span, s timeline.Stage) {
	if s.Container != "" {
		span.SetAttributes(attribute.String("container", s.Container), attribute.Int64("attempt", int64(s.Attempt)))
	}
	if s.Detail != "" {
		span.SetAttributes(attribute.String("detail", s.Detail))
	}
	if s.Times > 1 {
		span.SetAttributes(attribute.Int("times", s.Times))
	}
	if s.Err != "" {
		span.SetStatus(codes.Error, s.Err)
	}
}
