package telemetry_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/crisp-cri/crisp/internal/stage"
	"github.com/crisp-cri/crisp/server/telemetry"
)

func newTelemetry(t *testing.T) *telemetry.Telemetry {
	t.Helper()
	tel, err := telemetry.New(telemetry.Options{Version: "1.2.3", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return tel
}

func thisProcess() (int, error) { return os.Getpid(), nil }

func scrape(tel *telemetry.Telemetry) string {
	w := httptest.NewRecorder()
	tel.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

// Pulls are counted by result and by bytes; a call by its code and, while in flight,
// by its stage.
func TestMetrics(t *testing.T) {
	tel := newTelemetry(t)
	tel.Watch(func() telemetry.State {
		return telemetry.State{Containers: map[string]int{"running": 3}, Sandboxes: map[string]int{"ready": 2}, Streams: 1, ExecutorRestarts: 4, EventsDropped: 5,
			Pulls: []pulls.Pull{{Image: "a:1", Bytes: 3, Total: 9, Rate: 2, AllKnown: true}, {Image: "a:1", Bytes: 4}, {Image: "b:1"}}}
	}, thisProcess)
	for result, err := range map[string]error{"success": nil, "RegistryUnavailable": errors.New("x"), "NotFound": errors.New("y")} {
		ctx, call := tel.Begin(t.Context(), "PullImage", telemetry.Pod{})
		stage.Next(ctx, "layers")
		stage.Count(ctx, telemetry.Bytes, 1000)
		call.End(telemetry.Outcome{Code: "Unknown", Err: err, Result: result})
	}
	tel.OOM()
	ctx, going := tel.Begin(t.Context(), "RunPodSandbox", telemetry.Pod{})
	stage.Next(ctx, "cni")
	got := scrape(tel)
	for _, want := range []string{
		`crisp_image_pulls_total{result="success"} 1`, `crisp_image_pulls_total{result="RegistryUnavailable"} 1`,
		`crisp_image_pulled_bytes_total 3000`, `crisp_rpc_duration_seconds_count{code="Unknown",rpc="PullImage"} 3`,
		`crisp_stage_duration_seconds_count{rpc="PullImage",stage="layers"} 3`, `crisp_rpc_in_flight{rpc="RunPodSandbox"} 1`,
		`crisp_rpc_in_flight{rpc="PullImage"} 0`, `crisp_containers{state="running"} 3`, `crisp_sandboxes{state="ready"} 2`,
		`crisp_streaming_sessions 1`, `crisp_executor_restarts_total 4`, `crisp_event_subscribers_dropped_total 5`,
		`crisp_container_oom_events_total 1`,
		`crisp_image_pull_bytes{image="a:1"} 3`, `crisp_image_pull_size_bytes{image="a:1"} 9`, `crisp_image_pull_rate_bytes_per_second{image="a:1"} 2`,
		`crisp_image_pull_bytes{image="b:1"} 0`, `crisp_build_info{version="1.2.3"} 1`, `go_goroutines`,
		"\ncrisp_executor_process_resident_memory_bytes ", "\ncrisp_executor_process_open_fds ",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s", want)
		}
	}
	w := httptest.NewRecorder()
	tel.ServeCalls(w, nil)
	if lines := strings.Split(strings.TrimSpace(w.Body.String()), "\n"); len(lines) != 2 || !strings.HasPrefix(lines[1], "RunPodSandbox") || !strings.HasSuffix(lines[1], "cni") {
		t.Errorf("calls under way: %q", lines)
	}
	_, probe := tel.Begin(t.Context(), "ExecSync", telemetry.Pod{}) // its own timeout; the client is still connected
	probe.End(telemetry.Outcome{Code: "DeadlineExceeded", Err: context.DeadlineExceeded})
	if got := scrape(tel); strings.Contains(got, `crisp_rpc_abandoned_total{`) {
		t.Error("a call that ran into its own timeout is counted as abandoned")
	}
	going.End(telemetry.Outcome{Code: "DeadlineExceeded", Err: context.DeadlineExceeded, Left: true})
	if want := `crisp_rpc_abandoned_total{rpc="RunPodSandbox",stage="cni"} 1`; !strings.Contains(scrape(tel), want) {
		t.Errorf("no %s", want)
	}
}

// Without telemetry the log still gets its stages.
func TestNone(t *testing.T) {
	var tel *telemetry.Telemetry
	ctx, call := tel.Begin(t.Context(), "RunPodSandbox", telemetry.Pod{})
	stage.Next(ctx, "cni")
	_, shares := call.End(telemetry.Outcome{Code: "OK"})
	if len(shares) != 1 || shares[0].Name != "cni" || call.TraceID() != "" {
		t.Errorf("%v, %q", shares, call.TraceID())
	}
	tel.OOM()
	tel.Watch(nil, nil)
	if err := tel.Close(); err != nil {
		t.Error(err)
	}
}

// The collector may be a unix socket.
func TestTraceToUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "otlp.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	called := make(chan string, 10)
	collector := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(s)
		called <- method
		return errors.New("heard enough")
	}))
	go collector.Serve(l)
	defer collector.Stop()
	tel := newTelemetry(t)
	if err := tel.Trace(telemetry.Traces{Endpoint: "unix://" + path, PerMillion: 1000000}); err != nil {
		t.Fatal(err)
	}
	_, call := tel.Begin(t.Context(), "Version", telemetry.Pod{})
	call.End(telemetry.Outcome{Code: "OK"})
	if err := tel.Close(); err != nil {
		t.Logf("the collector said: %v", err)
	}
	select {
	case method := <-called:
		if !strings.HasSuffix(method, "TraceService/Export") {
			t.Errorf("%s was called", method)
		}
	default:
		t.Error("nothing came")
	}
}

// The calls for a pod are one trace, whose root is sent with the first of them; another pod
// has another. A caller's own trace comes first.
func TestOneTracePerPod(t *testing.T) {
	tel := newTelemetry(t)
	if err := tel.Trace(telemetry.Traces{Endpoint: "unix:///does/not/exist", PerMillion: 1000000}); err != nil {
		t.Fatal(err)
	}
	trace := func(ctx context.Context, rpc, pod string) string {
		_, call := tel.Begin(ctx, rpc, telemetry.Pod{Key: pod, Name: "default/" + pod, First: rpc == "RunPodSandbox"})
		defer call.End(telemetry.Outcome{Code: "OK"})
		return call.TraceID()
	}
	run, pull, start := trace(t.Context(), "RunPodSandbox", "web"), trace(t.Context(), "PullImage", "web"), trace(t.Context(), "StartContainer", "web")
	if len(run) != 32 || pull != run || start != run {
		t.Errorf("traces %q, %q, %q", run, pull, start)
	}
	if other := trace(t.Context(), "RunPodSandbox", "db"); other == run {
		t.Error("two pods have one trace")
	}
	const theirs = "4bf92f3577b34da6a3ce929d0e0e4736"
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("traceparent", "00-"+theirs+"-00f067aa0ba902b7-01"))
	if got := trace(ctx, "StartContainer", "web"); got != theirs {
		t.Errorf("a call of the trace %s belongs to %s", theirs, got)
	}
	if err := tel.Trace(telemetry.Traces{Endpoint: "unix:///does/not/exist"}); err != nil {
		t.Logf("the last spans: %v", err) // no collector to receive them
	}
	if got := trace(t.Context(), "RunPodSandbox", "web"); got != "" {
		t.Error("a pod that is not sampled is traced")
	}
}

// A collector can come and go while crispd runs; a missing one costs only its spans.
func TestTraceComesAndGoes(t *testing.T) {
	tel := newTelemetry(t)
	if _, call := tel.Begin(t.Context(), "Version", telemetry.Pod{}); call.TraceID() != "" {
		t.Error("it is traced with no collector")
	}
	if err := tel.Trace(telemetry.Traces{Endpoint: "unix:///does/not/exist", PerMillion: 1000000}); err != nil {
		t.Fatal(err)
	}
	_, call := tel.Begin(t.Context(), "Version", telemetry.Pod{})
	if len(call.TraceID()) != 32 {
		t.Errorf("trace %q", call.TraceID())
	}
	call.End(telemetry.Outcome{Code: "OK"})
	if err := tel.Trace(telemetry.Traces{Endpoint: "127.0.0.1:1"}); err != nil {
		t.Logf("the last spans: %v", err) // no collector to receive them
	}
	if _, call := tel.Begin(t.Context(), "Version", telemetry.Pod{}); call.TraceID() != "" {
		t.Error("a call that is not sampled is traced")
	}
	if err := tel.Close(); err != nil {
		t.Error(err)
	}
}
