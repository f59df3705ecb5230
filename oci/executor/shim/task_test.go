package shim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sandboxapi "github.com/containerd/containerd/api/runtime/sandbox/v1"
	taskv2 "github.com/containerd/containerd/api/runtime/task/v2"
	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/ttrpc"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/crisp-cri/crisp/internal/fault"
)

// A service answers the calls of both versions of the Task API, by containerd's own server and with
// its messages.
type service func(ctx context.Context, method string, request proto.Message) (proto.Message, error)

// serveTask serves s as version of the Task API and returns a client.
func serveTask(t *testing.T, version int, s service) *Client {
	t.Helper()
	file := map[int]protoreflect.FileDescriptor{2: taskv2.File_runtime_task_v2_shim_proto, 3: taskv3.File_runtime_task_v3_shim_proto}[version]
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	for _, desc := range []protoreflect.ServiceDescriptor{file.Services().ByName("Task"), sandboxes} {
		server.Register(string(desc.FullName()), s.methods(t, desc))
	}
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Serve(context.Background(), l)
	}()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
	return connect(t, Address{Program: "/bin/shim", Namespace: "k8s.io", Path: path, Version: version})
}

// sandboxes is the Sandbox API.
var sandboxes = sandboxapi.File_runtime_sandbox_v1_sandbox_proto.Services().ByName("Sandbox")

// methods are those of a service that pass their requests to s.
func (s service) methods(t *testing.T, desc protoreflect.ServiceDescriptor) map[string]ttrpc.Method {
	methods := map[string]ttrpc.Method{}
	for i := range desc.Methods().Len() {
		m := desc.Methods().Get(i)
		methods[string(m.Name())] = func(ctx context.Context, unmarshal func(any) error) (any, error) {
			of, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
			if err != nil {
				return nil, err
			}
			in := of.New().Interface()
			if err := unmarshal(in); err != nil {
				return nil, err
			}
			if unknown := in.ProtoReflect().GetUnknown(); len(unknown) > 0 {
				t.Errorf("%s has unknown fields %x", m.FullName(), unknown)
			}
			return s(ctx, string(m.Name()), in)
		}
	}
	return methods
}

func connect(t *testing.T, a Address) *Client {
	t.Helper()
	c, err := Dial(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// as returns a message of version 3 with the content of one of version 2.
func as(t *testing.T, m, empty proto.Message) proto.Message {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	out := proto.Clone(empty)
	if err := proto.Unmarshal(data, out); err != nil {
		t.Fatal(err)
	}
	return out
}

var (
	at    = time.Date(2026, 11, 29, 12, 0, 0, 123456789, time.UTC)
	opts  = Any{TypeURL: "type.of/Options", Value: []byte{0, 1, 255}}
	pbAny = &anypb.Any{TypeUrl: "type.of/Options", Value: []byte{0, 1, 255}}
	files = IO{Terminal: true, Stdin: "/in", Stdout: "/out", Stderr: "/err"}
)

// Each method with every field of its request and answer.
var methods = []struct {
	name   string
	call   func(context.Context, *Client) (any, error)
	asked  proto.Message
	answer proto.Message
	want   any
}{
	{"Create", func(ctx context.Context, c *Client) (any, error) {
		return c.Create(ctx, CreateRequest{
			ID: "c", Bundle: "/b", Rootfs: []Mount{{"overlay", "none", "/", []string{"ro", "lowerdir=/a:/b", ""}}, {Source: "/x"}},
			IO: files, Checkpoint: "/images", Options: &opts,
		})
	}, &taskv3.CreateTaskRequest{
		ID: "c", Bundle: "/b", Rootfs: []*types.Mount{{Type: "overlay", Source: "none", Target: "/", Options: []string{"ro", "lowerdir=/a:/b", ""}}, {Source: "/x"}},
		Terminal: true, Stdin: "/in", Stdout: "/out", Stderr: "/err", Checkpoint: "/images", Options: pbAny,
	}, &taskv3.CreateTaskResponse{Pid: 17}, 17},
	{"Start", func(ctx context.Context, c *Client) (any, error) { return c.Start(ctx, "c", "e") },
		&taskv3.StartRequest{ID: "c", ExecID: "e"}, &taskv3.StartResponse{Pid: 1 << 22}, 1 << 22},
	{"State", func(ctx context.Context, c *Client) (any, error) { return c.State(ctx, "c", "e") },
		&taskv3.StateRequest{ID: "c", ExecID: "e"}, &taskv3.StateResponse{
			ID: "c", Bundle: "/b", Pid: 3, Status: tasktypes.Status_STOPPED, Stdin: "/in", Stdout: "/out", Stderr: "/err", Terminal: true,
			ExitStatus: 137, ExitedAt: timestamppb.New(at), ExecID: "e",
		}, &State{ID: "c", ExecID: "e", Bundle: "/b", PID: 3, Status: Stopped, IO: files, Exit: &Exit{PID: 3, Status: 137, At: at}}},
	{"State", func(ctx context.Context, c *Client) (any, error) { return c.State(ctx, "c", "") },
		&taskv3.StateRequest{ID: "c"}, &taskv3.StateResponse{ID: "c", Pid: 3, Status: tasktypes.Status_PAUSING}, &State{ID: "c", PID: 3, Status: Pausing}},
	{"Wait", func(ctx context.Context, c *Client) (any, error) { return c.Wait(ctx, "c", "e") },
		&taskv3.WaitRequest{ID: "c", ExecID: "e"}, &taskv3.WaitResponse{ExitStatus: 255, ExitedAt: timestamppb.New(at)}, &Exit{Status: 255, At: at}},
	{"Kill", func(ctx context.Context, c *Client) (any, error) { return nil, c.Kill(ctx, "c", "e", 9, true) },
		&taskv3.KillRequest{ID: "c", ExecID: "e", Signal: 9, All: true}, &emptypb.Empty{}, nil},
	{"Exec", func(ctx context.Context, c *Client) (any, error) {
		return nil, c.Exec(ctx, ExecRequest{ID: "c", ExecID: "e", IO: files, Spec: ProcessSpec([]byte(`{}`))})
	}, &taskv3.ExecProcessRequest{
		ID: "c", ExecID: "e", Terminal: true, Stdin: "/in", Stdout: "/out", Stderr: "/err",
		Spec: &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Process", Value: []byte(`{}`)},
	}, &emptypb.Empty{}, nil},
	{"ResizePty", func(ctx context.Context, c *Client) (any, error) { return nil, c.ResizePty(ctx, "c", "e", 65535, 24) },
		&taskv3.ResizePtyRequest{ID: "c", ExecID: "e", Width: 65535, Height: 24}, &emptypb.Empty{}, nil},
	{"CloseIO", func(ctx context.Context, c *Client) (any, error) { return nil, c.CloseIO(ctx, "c", "e") },
		&taskv3.CloseIORequest{ID: "c", ExecID: "e", Stdin: true}, &emptypb.Empty{}, nil},
	{"Stats", func(ctx context.Context, c *Client) (any, error) { return c.Stats(ctx, "c") },
		&taskv3.StatsRequest{ID: "c"}, &taskv3.StatsResponse{Stats: pbAny}, &opts},
	{"Stats", func(ctx context.Context, c *Client) (any, error) { return c.Stats(ctx, "c") },
		&taskv3.StatsRequest{ID: "c"}, &taskv3.StatsResponse{}, (*Any)(nil)},
	{"Update", func(ctx context.Context, c *Client) (any, error) {
		return nil, c.Update(ctx, "c", Resources([]byte(`{"x":1}`)), map[string]string{"a": "b", "": "", "z": "ü"})
	}, &taskv3.UpdateTaskRequest{
		ID: "c", Resources: &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources", Value: []byte(`{"x":1}`)},
		Annotations: map[string]string{"a": "b", "": "", "z": "ü"},
	}, &emptypb.Empty{}, nil},
	{"Pause", func(ctx context.Context, c *Client) (any, error) { return nil, c.Pause(ctx, "c") },
		&taskv3.PauseRequest{ID: "c"}, &emptypb.Empty{}, nil},
	{"Resume", func(ctx context.Context, c *Client) (any, error) { return nil, c.Resume(ctx, "c") },
		&taskv3.ResumeRequest{ID: "c"}, &emptypb.Empty{}, nil},
	{"Checkpoint", func(ctx context.Context, c *Client) (any, error) { return nil, c.Checkpoint(ctx, "c", "/cp", &opts) },
		&taskv3.CheckpointTaskRequest{ID: "c", Path: "/cp", Options: pbAny}, &emptypb.Empty{}, nil},
	{"Delete", func(ctx context.Context, c *Client) (any, error) { return c.Delete(ctx, "c", "e") },
		&taskv3.DeleteRequest{ID: "c", ExecID: "e"}, &taskv3.DeleteResponse{Pid: 7, ExitStatus: 1, ExitedAt: timestamppb.New(at)}, &Exit{PID: 7, Status: 1, At: at}},
	{"Connect", func(ctx context.Context, c *Client) (any, error) { return c.Connect(ctx, "c") },
		&taskv3.ConnectRequest{ID: "c"}, &taskv3.ConnectResponse{ShimPid: 4, TaskPid: 5, Version: "v"}, 4},
	{"Shutdown", func(ctx context.Context, c *Client) (any, error) { return nil, c.Shutdown(ctx, "c", true) },
		&taskv3.ShutdownRequest{ID: "c", Now: true}, &emptypb.Empty{}, nil},
	{"Pids", func(ctx context.Context, c *Client) (any, error) { return c.Pids(ctx, "c") },
		&taskv3.PidsRequest{ID: "c"}, &taskv3.PidsResponse{Processes: []*tasktypes.ProcessInfo{{Pid: 1}, {}}}, 2},
	{"CreateSandbox", func(ctx context.Context, c *Client) (any, error) {
		return nil, c.CreateSandbox(ctx, SandboxRequest{ID: "s", Bundle: "/b", Options: &opts, NetNS: "/net", Annotations: map[string]string{"a": "b", "": "x"}})
	}, &sandboxapi.CreateSandboxRequest{
		SandboxID: "s", BundlePath: "/b", Options: pbAny, NetnsPath: "/net", Annotations: map[string]string{"a": "b", "": "x"},
	}, &sandboxapi.CreateSandboxResponse{}, nil},
	{"StartSandbox", func(ctx context.Context, c *Client) (any, error) { return c.StartSandbox(ctx, "s") },
		&sandboxapi.StartSandboxRequest{SandboxID: "s"}, &sandboxapi.StartSandboxResponse{Pid: 7, CreatedAt: timestamppb.New(at), Spec: pbAny}, 7},
	{"WaitSandbox", func(ctx context.Context, c *Client) (any, error) { return c.WaitSandbox(ctx, "s") },
		&sandboxapi.WaitSandboxRequest{SandboxID: "s"}, &sandboxapi.WaitSandboxResponse{ExitStatus: 137, ExitedAt: timestamppb.New(at)}, &Exit{Status: 137, At: at}},
	{"SandboxStatus", func(ctx context.Context, c *Client) (any, error) { return c.SandboxStatus(ctx, "s") },
		&sandboxapi.SandboxStatusRequest{SandboxID: "s"}, &sandboxapi.SandboxStatusResponse{
			SandboxID: "s", Pid: 7, State: "SANDBOX_READY", Info: map[string]string{"a": "b"}, CreatedAt: timestamppb.New(at), ExitedAt: &timestamppb.Timestamp{}, Extra: pbAny,
		}, &State{ID: "s", PID: 7, Status: Running}},
	{"SandboxStatus", func(ctx context.Context, c *Client) (any, error) { return c.SandboxStatus(ctx, "s") },
		&sandboxapi.SandboxStatusRequest{SandboxID: "s"}, &sandboxapi.SandboxStatusResponse{SandboxID: "s", State: "SANDBOX_NOTREADY"},
		&State{ID: "s", Status: Stopped, Exit: &Exit{}}},
	{"SandboxStatus", func(ctx context.Context, c *Client) (any, error) { return c.SandboxStatus(ctx, "s") },
		&sandboxapi.SandboxStatusRequest{SandboxID: "s"}, &sandboxapi.SandboxStatusResponse{SandboxID: "s", State: "gone", ExitedAt: timestamppb.New(at)},
		&State{ID: "s", Status: Stopped, Exit: &Exit{At: at}}},
	{"StopSandbox", func(ctx context.Context, c *Client) (any, error) { return nil, c.StopSandbox(ctx, "s", 5*time.Second) },
		&sandboxapi.StopSandboxRequest{SandboxID: "s", TimeoutSecs: 5}, &sandboxapi.StopSandboxResponse{}, nil},
	{"SandboxMetrics", func(ctx context.Context, c *Client) (any, error) { return c.SandboxMetrics(ctx, "s") },
		&sandboxapi.SandboxMetricsRequest{SandboxID: "s"}, &sandboxapi.SandboxMetricsResponse{Metrics: &types.Metric{Timestamp: timestamppb.New(at), ID: "s", Data: pbAny}}, &opts},
	{"SandboxMetrics", func(ctx context.Context, c *Client) (any, error) { return c.SandboxMetrics(ctx, "s") },
		&sandboxapi.SandboxMetricsRequest{SandboxID: "s"}, &sandboxapi.SandboxMetricsResponse{}, (*Any)(nil)},
	{"ShutdownSandbox", func(ctx context.Context, c *Client) (any, error) { return nil, c.ShutdownSandbox(ctx, "s") },
		&sandboxapi.ShutdownSandboxRequest{SandboxID: "s"}, &sandboxapi.ShutdownSandboxResponse{}, nil},
}

// Each request and each answer means the same to containerd's own server and messages, in both
// versions of the API. No method is left out that is called.
func TestMethods(t *testing.T) {
	tested := map[string]bool{"Platform": true, "PingSandbox": true, "UpdateSandbox": true} // not called
	for _, m := range methods {
		tested[m.name] = true
	}
	for _, desc := range []protoreflect.ServiceDescriptor{taskv3.File_runtime_task_v3_shim_proto.Services().ByName("Task"), sandboxes} {
		for i := range desc.Methods().Len() {
			if name := string(desc.Methods().Get(i).Name()); !tested[name] {
				t.Errorf("%s is not tested", name)
			}
		}
	}
	for _, version := range []int{2, 3} {
		for i, m := range methods {
			t.Run(fmt.Sprintf("v%d/%d %s", version, i, m.name), func(t *testing.T) {
				var asked proto.Message
				c := serveTask(t, version, func(ctx context.Context, method string, request proto.Message) (proto.Message, error) {
					md, _ := ttrpc.GetMetadata(ctx)
					if ns, _ := md.Get("containerd-namespace-ttrpc"); len(ns) != 1 || ns[0] != "k8s.io" {
						t.Errorf("the namespace is %q", ns)
					}
					if _, bounded := ctx.Deadline(); !bounded {
						t.Error("the shim does not know the deadline")
					}
					if method != m.name {
						t.Errorf("%s was called", method)
					}
					asked = request
					return m.answer, nil
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				got, err := m.call(ctx, c)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(m.asked, as(t, asked, m.asked), protocmp.Transform()); diff != "" {
					t.Errorf("request (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(m.want, got); diff != "" {
					t.Errorf("answer (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// Callers decide by the kind of an error, and never parse its text. It names the shim and the call.
func TestErrorsHaveKinds(t *testing.T) {
	for _, tt := range []struct {
		code codes.Code
		kind fault.Kind
		is   error
	}{
		{codes.NotFound, fault.NotFound, nil},
		{codes.AlreadyExists, fault.Exists, nil},
		{codes.InvalidArgument, fault.Invalid, nil},
		{codes.FailedPrecondition, fault.WrongState, nil},
		{codes.Aborted, fault.WrongState, nil},
		{codes.Unavailable, fault.Unavailable, nil},
		{codes.DeadlineExceeded, fault.Unavailable, context.DeadlineExceeded},
		{codes.Unimplemented, fault.Invalid, errors.ErrUnsupported},
		{codes.Unknown, fault.Internal, nil},
		{codes.Internal, fault.Internal, nil},
		{codes.Code(4000000000), fault.Internal, nil},
	} {
		c := serveTask(t, 3, func(context.Context, string, proto.Message) (proto.Message, error) {
			return nil, status.Error(tt.code, "a\x00b\n"+strings.Repeat("x", 1<<20)+"end")
		})
		_, err := c.Start(t.Context(), "c", "")
		if got := fault.KindOf(err); err == nil || got != tt.kind || tt.is != nil && !errors.Is(err, tt.is) {
			t.Errorf("%v: the kind is %v, want %v: %.200v", tt.code, got, tt.kind, err)
		}
		text := fmt.Sprint(err)
		if !strings.HasPrefix(text, "shim /bin/shim at ") || !strings.Contains(text, ": Start: a") || !strings.Contains(text, "end") ||
			len(text) > 5000 || strings.Contains(text, "\n") {
			t.Errorf("%v: the text has %d bytes: %.200s", tt.code, len(text), text)
		}
		if errors.Is(err, ErrLost) {
			t.Errorf("%v: the connection has not ended", tt.code)
		}
	}
}

// A method that the shim does not have, and a version that it does not have.
func TestUnimplemented(t *testing.T) {
	c := serveTask(t, 2, nil)
	c.address.Version = 3
	if err := c.CloseIO(t.Context(), "c", ""); !errors.Is(err, errors.ErrUnsupported) || !errors.Is(err, fault.Invalid) {
		t.Errorf("the error is %v", err)
	}
	for _, version := range []int{0, 1, 4} {
		if _, err := Dial(t.Context(), Address{Path: c.address.Path, Version: version}); !errors.Is(err, fault.Invalid) {
			t.Errorf("version %d: the error is %v", version, err)
		}
	}
}

// Calls are answered in any order, and one that hangs ends with its context alone.
func TestCallsAreIndependent(t *testing.T) {
	release := make(chan struct{})
	c := serveTask(t, 3, func(ctx context.Context, method string, request proto.Message) (proto.Message, error) {
		if method == "Wait" {
			<-release
			return &taskv3.WaitResponse{ExitStatus: 9}, nil
		}
		return &taskv3.StartResponse{Pid: uint32(len(request.(*taskv3.StartRequest).ID))}, nil
	})
	exits := make(chan error, 10)
	for range cap(exits) {
		go func() {
			exit, err := c.Wait(context.Background(), "c", "")
			if err == nil && exit.Status != 9 {
				err = fmt.Errorf("the status is %d", exit.Status)
			}
			exits <- err
		}()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Wait(ctx, "given up", ""); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, fault.Unavailable) {
		t.Errorf("the call that hangs ends with %v", err)
	}
	started := make(chan error, 20)
	for n := range cap(started) {
		go func() {
			pid, err := c.Start(context.Background(), strings.Repeat("x", n), "")
			if err == nil && pid != n {
				err = fmt.Errorf("call %d got the answer of %d", n, pid)
			}
			started <- err
		}()
	}
	for range cap(started) {
		if err := <-started; err != nil {
			t.Error(err)
		}
	}
	close(release)
	for range cap(exits) {
		if err := <-exits; err != nil {
			t.Error(err)
		}
	}
	if c.mu.Lock(); len(c.calls) != 0 {
		t.Errorf("%d calls are left", len(c.calls))
	}
	c.mu.Unlock()
}

// A request that no shim would take is not sent.
func TestRequestIsTooLong(t *testing.T) {
	c := serveTask(t, 3, func(context.Context, string, proto.Message) (proto.Message, error) {
		return &emptypb.Empty{}, nil
	})
	spec := ProcessSpec(make([]byte, maxData))
	if err := c.Exec(t.Context(), ExecRequest{ID: "c", Spec: spec}); !errors.Is(err, fault.Invalid) {
		t.Errorf("the error is %v", err)
	}
	spec.Value = spec.Value[:maxData-1000]
	if err := c.Exec(t.Context(), ExecRequest{ID: "c", Spec: spec}); err != nil {
		t.Error(err)
	}
}
