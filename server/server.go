// Package server implements CRI v1: it answers the kubelet's calls with oci, image, network and
// streaming.
//
// Each RPC has its own file. A handler finds the object, converts the request, makes the call,
// and converts the result. It contains no logging, status codes or locks; interceptor.go handles
// these in one place.
//
// # State
//
// The server keeps no records of its own. What CRI wants back verbatim (labels, annotations,
// mounts, namespace options) and whatever else must survive a restart (addresses, image
// identifiers) is the opaque Extra of oci's records: record.go defines its format, and index.go
// caches it decoded. Lists and statuses are built from these snapshots and never wait.
//
// Apart from paths that requests name, it writes files only to directories that oci provides
// (oci.Sandbox.Dir, RunDir and ShmDir, oci.Runtime.RestoreDir) and below <root>/checkpoints, where
// CheckpointContainer works and which Start removes. NRI plugins connect to the socket of
// Options.NRI.
//
// # Names and retries
//
// The kubelet repeats a request that got no answer under the same name, and gives the name up
// only for an object that it has seen in a list. So RunPodSandbox and CreateContainer run on a
// context of their own and not on their caller's. A repeated request joins the work; a result
// that no request collects is not listed, and undone after a while, or as soon as another request
// needs what it holds (creations.go). Of a pod that is deleted while it starts, the kubelet has
// seen nothing and stops nothing: it only hangs up. Stops and
// removals are repeated too; for these it is enough that concurrent callers share one run
// (tasks.go).
//
//	        RunPodSandbox, CreateContainer
//	                     │ name
//	┌────────────────────▼───────────────────┐
//	│ creation: in flight ─▶ finished         │──▶ delivered: listed, found by
//	│     │ failed              │ no caller   │    a repetition from here on
//	└─────▼─────────────────────▼─────────────┘
//	    undone                undone
//
// recover.go says what half-finished work means after a restart.
//
// # Memory
//
// What clients and pods make crispd hold is bounded over all of them: the outputs of commands
// (container_execsync.go), what streams read ahead and the URLs that wait (package streaming),
// layers and pulls (package image). Subscribers of events share them, and one that does not keep
// up is dropped. Requests, lists, statuses and metrics exist only during a call on a socket of
// root's, or of a scrape, and how many of those there are is root's to decide.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/image/rootfs"
	"github.com/crisp-cri/crisp/internal/pullapi"
	"github.com/crisp-cri/crisp/internal/pulls"
	"github.com/crisp-cri/crisp/internal/rootless"
	"github.com/crisp-cri/crisp/network"
	"github.com/crisp-cri/crisp/oci"
	"github.com/crisp-cri/crisp/server/cadvisor"
	"github.com/crisp-cri/crisp/server/loaderapi"
	"github.com/crisp-cri/crisp/server/nri"
	"github.com/crisp-cri/crisp/server/selinux"
	"github.com/crisp-cri/crisp/server/spec"
	"github.com/crisp-cri/crisp/server/telemetry"
	"github.com/crisp-cri/crisp/streaming"
)

// Images is what the server needs of *image.Store.
type Images interface {
	Get(ref string) (image.Image, error)
	List() []image.Image
	Allowed(ctx context.Context, namespace, name, id string) error
	Remove(ctx context.Context, ref string) error
	FsInfo() image.FsInfo
	Pull(ctx context.Context, ref string, as registry.Caller) (image.Image, error)
	Load(ctx context.Context, r io.Reader) ([]image.Image, error)
	Save(ctx context.Context, ref string, begin func(id string) (io.Writer, error)) error
	Tag(ref, tag string) (image.Image, error)
	Pulls() []pulls.Pull       // under way
	RecentPulls() []pulls.Pull // the last that have ended, latest first
}

// RootFS manages the root file systems made from images, each under the key of its user.
type RootFS interface {
	Mount(ctx context.Context, key, id string, o rootfs.MountOptions) (root string, err error)
	MakeVolumes(ctx context.Context, key string, want rootfs.VolumesWanted) ([]rootfs.Volume, error)
	Unmount(ctx context.Context, key string, remove bool) error
	Mounts() []string
	Usage(key string) (bytes, inodes uint64, err error)
	// What a container has written is read by Diff and repeated by Apply.
	Diff(ctx context.Context, key string, w io.Writer) (deleted []string, err error)
	Apply(ctx context.Context, key string, r io.Reader, deleted []string) error
}

// Network is what the server needs of *network.Network.
type Network interface {
	Attach(ctx context.Context, p network.Pod) (network.Result, error)
	Detach(ctx context.Context, p network.Pod) error
	Status() error
	GC(ctx context.Context, keep []string) error
}

// Options are the arguments of New. Runtime, Images, RootFS, Network and Events are
// required.
type Options struct {
	Runtime   *oci.Runtime
	Images    Images
	RootFS    RootFS
	Network   Network
	HostPorts *rootless.Ports // nil = the network has them
	Events    *Events         // the one whose Publish is the Runtime's OnEvent
	Streaming streaming.Options

	Handlers           map[string]Handler // by name, besides the default one, which SpecHost and NoUserNS define
	SpecHost           spec.Host
	SystemdCgroup      bool
	AppArmor           Confiner        // nil = AppArmor is off
	SELinux            *selinux.Policy // nil = SELinux is off
	NoUserNS           error           // why pods cannot have user namespaces; nil = they can
	CDISpecDirs        []string        // where vendors describe devices; later ones win
	HooksDirs          []string        // oci-hooks(5); later ones win
	NRI                *nri.Options    // nil = no plugins; New fills in Version, Log and the swap limit
	RejectMountSources []string        // host paths whose absence is an error; others are created, as users expect of hostPath
	RestoreFromImages  bool            // CreateContainer may restore from checkpoint images
	CAdvisor           bool            // RegisterCAdvisor may be called
	Version            string          // of crisp, semantic; "" means 0.0.0
	Root, State        string          // directories: checkpoints are made below Root; both are in the verbose Status
	Log                *slog.Logger

	Telemetry *telemetry.Telemetry // nil = no metrics, no traces
}

// A Server is one CRI endpoint. Its exported methods are CRI's RuntimeService, and those that
// start and end it.
type Server struct {
	cri.UnimplementedRuntimeServiceServer // for what a later CRI adds

	o         Options
	runtime   *oci.Runtime
	images    Images
	rootfs    RootFS
	network   Network
	events    *Events
	streaming *streaming.Server
	plugins   *nri.Plugins     // nil = none
	cadvisor  *cadvisor.Server // nil = cAdvisor is not served
	log       *slog.Logger
	current   atomic.Pointer[Options] // with the changes of Reconfigure, and all Handlers, "" included

	imageRoot  func() string // directory of images and writable layers; cached, because FsInfo also sums their usage
	index      index
	sandboxes  *creations // RunPodSandbox in flight
	containers *creations // CreateContainer in flight
	tasks      tasks      // stops and removals in flight
	outputs    outputMemory
	unknown    unknownFields
	cpu        cpuRates
	ooms       sync.Map // ID of a container → *atomic.Uint64, the OOM kills that the executor has reported
	exits      exits
	interfaces interfaces
	startups   startups

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   detached
}

// An imageService is CRI's ImageService, loads and saves archives for the Loader, and lists
// pulls.
type imageService struct {
	cri.UnimplementedImageServiceServer

	images Images
	server *Server // knows the handlers
}

// A streamRuntime implements streaming.Runtime for a Server.
type streamRuntime struct{ server *Server }

// New returns a server that only listens for streams so far: Start it, and Register it with the
// gRPC server of the socket.
func New(o Options) (*Server, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	o.Version = cmp.Or(o.Version, "0.0.0")
	s := &Server{o: o, runtime: o.Runtime, images: o.Images, rootfs: o.RootFS, network: o.Network, events: o.Events, log: o.Log}
	s.imageRoot = sync.OnceValue(func() string { return s.images.FsInfo().Mountpoint })
	s.Reconfigure(o)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.sandboxes = newCreations(s.ctx, &s.work, s.log, "sandbox")
	s.containers = newCreations(s.ctx, &s.work, s.log, "container")
	s.sandboxes.delivered, s.containers.delivered = s.sandboxDelivered, s.containerDelivered
	s.tasks.start(s.ctx, &s.work)
	var err error
	if s.streaming, err = streaming.New(o.Streaming, streamRuntime{s}); err != nil {
		s.cancel()
		return nil, fmt.Errorf("start streaming: %w", err)
	}
	if s.plugins, err = s.newPlugins(); err != nil {
		s.cancel()
		return nil, errors.Join(err, s.streaming.Close())
	}
	if o.CAdvisor {
		s.cadvisor = cadvisor.New(cgroupOwners{s}, s.log)
	}
	s.events.attach(s)
	o.Telemetry.Watch(s.state, s.runtime.ExecutorPid)
	return s, nil
}

// Register makes s answer to CRI's two services, the Loader and Pulls on g, which must
// have been made with its Interceptors.
func Register(g grpc.ServiceRegistrar, s *Server) {
	i := imageService{images: s.images, server: s}
	cri.RegisterRuntimeServiceServer(g, s)
	cri.RegisterImageServiceServer(g, i)
	loaderapi.Register(g, i)
	pullapi.Register(g, i)
}

// Close ends the streams and waits for detached work, which undoes itself. Containers keep
// running.
func (s *Server) Close() error {
	s.cancel()
	s.events.detach()
	err := s.streaming.Close()
	s.work.close()
	s.plugins.Close()
	s.cadvisor.Close()
	s.sandboxes.close()
	s.containers.close()
	s.interfaces.closeAll()
	return err
}
