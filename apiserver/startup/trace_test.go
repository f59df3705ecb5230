package startup_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/apiserver/startup"
	"github.com/crisp-cri/crisp/internal/podtrace"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	v1 "k8s.io/api/core/v1"
)

// begin reports the stages of a pod up to a container that is not ready.
func begin(t *testing.T, k *startup.Keeper, pod *v1.Pod, attempt uint32) {
	k.Seen(pod)
	k.Observe(pod)()
	ctx, _, done := k.Act(t.Context(), context.Background(), pod, podsync.Action{Verb: podsync.RunSandbox, Attempt: attempt})
	stage.Next(ctx, "volumes")
	stage.Next(ctx, "sandbox")
	done(nil)
	ctx, _, done = k.Act(t.Context(), context.Background(), pod, podsync.Action{Verb: podsync.StartContainer, Name: "app"})
	stage.Next(ctx, "pull")
	done(errors.New("no such image"))
	k.Status(pod, status(false), nil)
}

// The agent's part of a pod's start is one span with its stages as children, in crispd's trace of
// the pod, exported once. A pod that ran before the agent is not exported.
func TestTraces(t *testing.T) {
	sent := tracetest.NewInMemoryExporter()
	k := &startup.Keeper{Traces: podtrace.NewWith(podtrace.Options{PerMillion: 1e6}, sdk.WithSyncer(sent))}
	pod := podOf("u")
	begin(t, k, pod, 3)
	if n := len(sent.GetSpans()); n != 0 {
		t.Errorf("%d spans were sent before the pod was ready", n)
	}
	k.Status(pod, status(true), nil)
	k.Status(pod, status(true), nil)
	k.Keep(only())
	trace, root := podtrace.Pod{Key: podtrace.Key("u", 3)}.IDs()
	var names []string
	spans := sent.GetSpans()
	top := spans[len(spans)-1] // it ends last
	for _, s := range spans {
		names = append(names, s.Name)
		parent := top.SpanContext.SpanID()
		if s.Name == "until ready" {
			parent = root
		}
		if s.SpanContext.TraceID() != trace || s.Parent.SpanID() != parent {
			t.Errorf("%s is of the trace %s and the parent %s", s.Name, s.SpanContext.TraceID(), s.Parent.SpanID())
		}
		if s.StartTime.Before(top.StartTime) || s.EndTime.After(top.EndTime) {
			t.Errorf("%s lasts from %v to %v", s.Name, s.StartTime, s.EndTime)
		}
		if failed := s.Status.Code == codes.Error; failed != (s.Name == "pull") {
			t.Errorf("%s has the status %v", s.Name, s.Status)
		}
	}
	slices.Sort(names)
	if diff := cmp.Diff([]string{"observe", "pull", "queue", "readiness probe", "sandbox", "until ready", "volumes"}, names); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}

	sent.Reset()
	k.Seen(podOf("ran before"))
	k.Status(podOf("ran before"), status(true), nil)
	if n := len(sent.GetSpans()); n != 0 {
		t.Errorf("%d spans were sent of a pod that ran already", n)
	}
	begin(t, k, podOf("never"), 0)
	k.Keep(only())
	if spans := sent.GetSpans(); len(spans) == 0 || spans[len(spans)-1].Status.Code != codes.Error {
		t.Errorf("of a pod that was never ready there is %v", spans)
	}
	none := &startup.Keeper{Traces: podtrace.NewWith(podtrace.Options{}, sdk.WithSyncer(sent))}
	sent.Reset()
	begin(t, none, pod, 0)
	none.Status(pod, status(true), nil)
	if n := len(sent.GetSpans()); n != 0 {
		t.Errorf("%d spans were sent of a pod that is not sampled", n)
	}
}

// The next agent restores what one agent has saved, even in the middle of a start, and continues
// it.
func TestSave(t *testing.T) {
	path := filepath.Join(t.TempDir(), "startup.json")
	first := &startup.Keeper{}
	pod := podOf("u")
	begin(t, first, pod, 0)
	if err := first.Save(pod, path); err != nil {
		t.Fatal(err)
	}
	if err := first.Save(pod, filepath.Join(path, "nowhere")); err != nil {
		t.Errorf("what has not changed was written: %v", err)
	}
	sent := tracetest.NewInMemoryExporter()
	second := &startup.Keeper{Traces: podtrace.NewWith(podtrace.Options{PerMillion: 1e6}, sdk.WithSyncer(sent))}
	second.Restore("another", path)
	second.Restore("u", path)
	second.Seen(pod)
	before, _ := first.Of("u")
	after, ok := second.Of("u")
	if diff := cmp.Diff(before, after); !ok || diff != "" || len(second.All()) != 1 {
		t.Fatalf("report (-first +second):\n%s", diff)
	}
	second.Status(pod, status(true), nil)
	if n := len(sent.GetSpans()); n == 0 {
		t.Error("what the first agent has begun was not traced")
	}
	if err := second.Save(pod, path); err != nil {
		t.Fatal(err)
	}
	third := &startup.Keeper{}
	third.Restore("u", path)
	want, _ := second.Of("u")
	got, _ := third.Of("u")
	if diff := cmp.Diff(want, got); diff != "" || got.Ready.IsZero() {
		t.Errorf("report (-second +third):\n%s", diff)
	}
	third.Keep(only())
	third.Restore("u", filepath.Join(path, "nowhere"))
	if _, ok := third.Of("u"); ok {
		t.Error("there is a report of nothing")
	}
}
