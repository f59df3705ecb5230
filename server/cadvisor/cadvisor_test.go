package cadvisor

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	version "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/crisp-cri/crisp/internal/fault"
)

// A fakeSource has the objects of a test.
type fakeSource struct {
	mu      sync.Mutex
	objects map[string]Object
	inmates map[string][]int // processes by sandbox; guarded by mu
	did     []string         // changes of stand-ins; guarded by mu
}

func (f *fakeSource) Version() string { return "1.2.3" }

func (f *fakeSource) Object(id string) (Object, error) {
	if o, ok := f.objects[id]; ok {
		return o, nil
	}
	return Object{}, fault.NotFound.Errorf("no %q", id)
}

func (f *fakeSource) Sandboxes() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []string
	for id := range f.inmates {
		ids = append(ids, id)
	}
	return ids
}

func (f *fakeSource) Inmates(id string) []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.inmates[id])
}

func (f *fakeSource) StandIn(id string, present bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	what := "removed "
	if present {
		what = "made "
	}
	f.did = append(f.did, what+id)
	return nil
}

func (f *fakeSource) set(id string, pids ...int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inmates[id] = pids
}

func (f *fakeSource) done() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	did := f.did
	f.did = nil
	return did
}

// in returns the context of a call in a containerd namespace.
func in(ctx context.Context, namespace string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace)
}

// incoming is in on the server's side.
func incoming(ctx context.Context) context.Context {
	return metadata.NewIncomingContext(ctx, metadata.Pairs("containerd-namespace", namespace))
}

// The requests of cAdvisor's handler, over a socket as in cAdvisor.
func TestWhatCAdvisorAsks(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	spec := &specs.Spec{Version: "1.2.0", Process: &specs.Process{Env: []string{"A=b"}, Cwd: "/"}, Annotations: map[string]string{"a": "b"}}
	f := &fakeSource{objects: map[string]Object{
		"new":     {ID: "new", Sandbox: "pod", Labels: map[string]string{"io.kubernetes.container.name": "web"}, Image: "docker.io/library/nginx:1", CreatedAt: at, Spec: spec},
		"running": {ID: "running", Sandbox: "pod", Spec: spec, Pid: 77},
		"ended":   {ID: "ended", Sandbox: "pod", Spec: spec, Exit: &Exit{At: at, Code: 137}},
		"pod":     {ID: "pod", Labels: map[string]string{"io.kubernetes.pod.name": "web"}, Spec: spec, Pid: 5},
	}, inmates: map[string][]int{}}
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := New(f, slog.New(slog.DiscardHandler))
	defer s.Close()
	g := grpc.NewServer()
	Register(g, s)
	go func() { _ = g.Serve(l) }()
	defer g.Stop()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	v, err := version.NewVersionClient(conn).Version(t.Context(), &emptypb.Empty{})
	if err != nil || v.Version != "1.2.3" {
		t.Errorf("version %v, %v", v, err)
	}
	ctx := in(t.Context(), "k8s.io")
	got, err := containers.NewContainersClient(conn).Get(ctx, &containers.GetContainerRequest{ID: "new"})
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	want := &containers.Container{
		ID: "new", Sandbox: "pod", Image: "docker.io/library/nginx:1", Runtime: &containers.Container_Runtime{Name: "crisp"},
		Labels:    map[string]string{"io.kubernetes.container.name": "web", "io.cri-containerd.kind": "container"},
		Spec:      &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Spec", Value: encoded},
		CreatedAt: timestamppb.New(at), UpdatedAt: timestamppb.New(at),
	}
	if diff := cmp.Diff(want, got.Container, protocmp.Transform()); diff != "" {
		t.Errorf("container (-want +got):\n%s", diff)
	}
	if got, err = containers.NewContainersClient(conn).Get(ctx, &containers.GetContainerRequest{ID: "pod"}); err != nil || got.Container.Labels["io.cri-containerd.kind"] != "sandbox" {
		t.Errorf("sandbox %v, %v", got, err)
	}
	for id, want := range map[string]*task.Process{
		"new":     nil,
		"other":   nil,
		"running": {ID: "running", ContainerID: "running", Pid: 77, Status: task.Status_RUNNING},
		"pod":     {ID: "pod", ContainerID: "pod", Pid: 5, Status: task.Status_RUNNING},
		"ended":   {ID: "ended", ContainerID: "ended", Status: task.Status_STOPPED, ExitStatus: 137, ExitedAt: timestamppb.New(at)},
	} {
		got, err := tasks.NewTasksClient(conn).Get(ctx, &tasks.GetRequest{ContainerID: id})
		if (err != nil) != (want == nil) {
			t.Errorf("task of %s: %v", id, err)
		}
		if diff := cmp.Diff(want, got.GetProcess(), protocmp.Transform()); diff != "" {
			t.Errorf("task of %s (-want +got):\n%s", id, diff)
		}
	}
	if got, err := containers.NewContainersClient(conn).Get(in(t.Context(), "moby"), &containers.GetContainerRequest{ID: "new"}); err == nil {
		t.Errorf("docker has our container: %v", got)
	}
	if _, err := containers.NewContainersClient(conn).Delete(ctx, &containers.DeleteContainerRequest{ID: "new"}); err == nil {
		t.Error("a container can be deleted")
	}
}

// A stand-in is about a live process, and is made again when it must be about another.
func TestStandIns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSource{objects: map[string]Object{"pod": {ID: "pod", Spec: &specs.Spec{}}}, inmates: map[string][]int{"pod": {10}}}
		s := New(f, slog.New(slog.DiscardHandler))
		defer s.Close()
		want := func(what, pid string, did ...string) {
			t.Helper()
			synctest.Wait()
			if got := f.done(); !slices.Equal(got, did) {
				t.Errorf("%s: did %q, want %q", what, got, did)
			}
			resp, err := taskService{server: s}.Get(incoming(t.Context()), &tasks.GetRequest{ContainerID: "pod"})
			if pid == "" {
				if !errors.Is(err, fault.NotFound) {
					t.Errorf("%s: task %v, %v", what, resp, err)
				}
				return
			}
			if err != nil || resp.Process.String() != (&task.Process{ID: "pod", ContainerID: "pod", Pid: map[string]uint32{"10": 10, "11": 11, "12": 12}[pid], Status: task.Status_RUNNING}).String() {
				t.Errorf("%s: task %v, %v, want %s", what, resp, err, pid)
			}
		}
		s.Changed("pod")
		synctest.Wait()
		if got := f.done(); got != nil {
			t.Errorf("did %q before a client asked", got)
		}
		if _, err := (versionService{server: s}).Version(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		want("a client asks", "10", "made pod")
		f.set("pod", 10, 11)
		s.Changed("pod")
		want("another container starts", "10")
		f.set("pod", 11)
		s.Changed("pod")
		want("the first one ends", "11", "made pod")
		f.set("pod")
		s.Changed("pod")
		want("the last one ends", "", "removed pod")
		s.Changed("pod", "never seen")
		want("nothing is there", "")
		f.set("pod", 12)
		s.Changed("pod")
		want("one starts again", "12", "made pod")
	})
}

// A nil Server does nothing.
func TestNil(t *testing.T) {
	var s *Server
	s.Changed("pod")
	s.Close()
}
