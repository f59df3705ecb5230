// Package cadvisor tells cAdvisor, which is part of the kubelet, which container or sandbox a
// cgroup belongs to. Without it the kubelet's /metrics/cadvisor names no container, and its
// /stats/summary has neither network nor process counts, unless the feature gate
// PodAndContainerStatsFromCRI is on.
//
// cAdvisor finds a cgroup with 64 hexadecimal digits in its name and asks each of the runtimes
// that it knows about it. So a Server speaks containerd's API (containerd.services.*.v1), as
// much of it as cAdvisor calls, for kubelet --containerd=SOCKET:
//
//	Version          once, when the kubelet starts
//	Containers.Get   labels, image and spec, of a sandbox as of a container
//	Tasks.Get        the PID; repeated for 3 s until there is one
//
// It reads snapshots and changes only stand-ins.
//
// # Stand-ins
//
// cAdvisor counts the pod's network in /proc/PID/net/dev of containerd's pause container: a
// container whose label io.cri-containerd.kind is "sandbox". In crisp no process runs for a
// sandbox, unless it shares its PID namespace and has an init. Any process of the pod will do,
// but cAdvisor asks for the PID once, when it first sees the cgroup:
//
//	container starts ─▶ stand-in created ─▶ cAdvisor asks: the PID of that container
//	that one exits   ─▶ stand-in replaced ─▶ cAdvisor asks: the PID of another one
//	the last exits   ─▶ stand-in removed ─▶ no network is counted
//
// Stand-ins (oci.Sandbox.RenewStandIn) are created only after the first call: without a monitor
// they would cost and serve nothing.
package cadvisor

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	version "github.com/containerd/containerd/api/services/version/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/poke"
)

// An Object is a sandbox or a container, as it is now.
type Object struct {
	ID        string
	Sandbox   string // of a container, the ID of its sandbox; "" for a sandbox
	Labels    map[string]string
	Image     string // one of its names
	CreatedAt time.Time
	Spec      *specs.Spec // with a Process
	Pid       int         // 0 = it has not started, or has ended
	Exit      *Exit       // nil = it has not ended
}

// An Exit describes how a container ended.
type Exit struct {
	At   time.Time
	Code uint32
}

// A Source provides the sandboxes and containers.
type Source interface {
	// Version returns crisp's version.
	Version() string
	// Object returns the object with this full ID, or fault.NotFound.
	Object(id string) (Object, error)
	// Sandboxes returns the IDs of all that may have stand-ins.
	Sandboxes() []string
	// Inmates returns the PIDs of processes in the sandbox's network, longest present first;
	// none if it must not have a stand-in.
	Inmates(sandbox string) []int
	// StandIn creates or replaces a sandbox's stand-in, or removes it.
	StandIn(sandbox string, present bool) error
}

// A Server answers cAdvisor. Changed and Close may be called on a nil Server.
type Server struct {
	source Source
	log    *slog.Logger
	asked  atomic.Bool   // a client has called
	wake   chan struct{} // changed has grown
	ended  chan struct{} // closed by Close
	done   chan struct{} // closed when the goroutine has ended
	pids   sync.Map      // sandbox → PID for which its stand-in was created

	mu      sync.Mutex
	changed map[string]bool // IDs of sandboxes to check; guarded by mu
}

// New returns a Server; Close ends it.
func New(source Source, log *slog.Logger) *Server {
	s := &Server{
		source: source, log: log,
		wake: make(chan struct{}, 1), ended: make(chan struct{}), done: make(chan struct{}),
		changed: make(map[string]bool),
	}
	go s.run()
	return s
}

// Close ends the work on stand-ins, which stay for the next Server. It must be called once.
func (s *Server) Close() {
	if s == nil {
		return
	}
	close(s.ended)
	<-s.done
}

// Register registers s on g.
func Register(g grpc.ServiceRegistrar, s *Server) {
	version.RegisterVersionServer(g, versionService{server: s})
	containers.RegisterContainersServer(g, containerService{server: s})
	tasks.RegisterTasksServer(g, taskService{server: s})
}

// namespace is the containerd namespace of CRI's objects.
const namespace = "k8s.io"

// begin starts each call. containerd's clients send the namespace in a header.
func (s *Server) begin(ctx context.Context) error {
	if !s.asked.Swap(true) {
		s.Changed(s.source.Sandboxes()...)
	}
	md, _ := metadata.FromIncomingContext(ctx)
	if names := md.Get("containerd-namespace"); len(names) == 0 || names[0] != namespace {
		return fault.NotFound.Errorf("containerd namespace %q: all is in %q", names, namespace)
	}
	return nil
}

// Changed reports that the sandboxes or their containers have started or ended. It does not
// block.
func (s *Server) Changed(sandboxes ...string) {
	if s == nil || !s.asked.Load() {
		return
	}
	s.mu.Lock()
	for _, id := range sandboxes {
		s.changed[id] = true
	}
	s.mu.Unlock()
	poke.Wake(s.wake)
}

// run updates the stand-ins of changed sandboxes.
func (s *Server) run() {
	defer close(s.done)
	for {
		select {
		case <-s.ended:
			return
		case <-s.wake:
		}
		s.mu.Lock()
		changed := s.changed
		s.changed = make(map[string]bool)
		s.mu.Unlock()
		for id := range changed {
			if err := s.settle(id); err != nil {
				s.log.Warn("stand-in was not made", "sandbox", id, "err", err)
			}
		}
	}
}

// settle makes the sandbox's stand-in represent a live process.
func (s *Server) settle(id string) error {
	inmates := s.source.Inmates(id)
	pid := s.pid(id)
	switch {
	case pid != 0 && slices.Contains(inmates, pid):
		return nil
	case len(inmates) > 0:
		s.pids.Store(id, inmates[0]) // first: cAdvisor asks at once
		return s.source.StandIn(id, true)
	case pid != 0:
		s.pids.Delete(id)
		return s.source.StandIn(id, false)
	}
	return nil
}

// pid returns the PID that the sandbox's stand-in represents, or 0.
func (s *Server) pid(id string) int {
	v, _ := s.pids.Load(id)
	pid, _ := v.(int)
	return pid
}

// A versionService is containerd.services.version.v1.Version.
type versionService struct {
	version.UnimplementedVersionServer
	server *Server
}

// Version returns crisp's version. It is also called without a namespace.
func (v versionService) Version(ctx context.Context, _ *emptypb.Empty) (*version.VersionResponse, error) {
	_ = v.server.begin(ctx)
	return &version.VersionResponse{Version: v.server.source.Version()}, nil
}
