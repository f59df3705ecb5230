// Package criruntime drives a container runtime for the agent's workers: it observes pods and
// does the actions of a plan, through CRI alone. The same driver runs against crispd, containerd
// or a fake.
//
// The runtime is the ground truth for what runs; criruntime finds its pods again by the labels
// and annotations that it puts on sandboxes and containers (agent/podspec). podspec translates
// pods, and agent/podfiles keeps their files: the driver gathers the input of the translation,
// observes and acts. Below the agent's root it reads
//
//	config.json             credentials of the node for registries, as docker writes it
//	images/                 the credentials with which images were pulled: see pull.Ledger
//	seccomp/                the profiles of type Localhost
//
// All workers share one Driver. It uses the Connection, which counts calls and waits for a runtime
// that has not answered yet. PLEG finds what has changed in the runtime, and Monitor whether the
// runtime is ready.
package criruntime

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/pull"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/agent/volume"
	"github.com/crisp-cri/crisp/internal/crilog"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Options configure a Driver.
type Options struct {
	Root           string // the agent's directory, absolute
	Runtime        internalapi.RuntimeService
	Images         internalapi.ImageManagerService
	Files          *podfiles.Store
	ResolvConf     string   // of the node; what pods get for dnsPolicy Default
	ClusterDNS     []string // name servers for dnsPolicy ClusterFirst; none: as Default
	ClusterDomain  string   // suffix of the names of pods with a subdomain
	SeccompDefault bool     // RuntimeDefault for containers that name no profile
	NoCPUQuota     bool     // do not enforce CPU limits
	LogLimit       crilog.Limit
	Pulls          Pulls
	MaxBackoff     time.Duration // of containers that keep exiting; 0 is podsync.DefaultMaxBackoff

	Plugins *pull.Plugins // provide more credentials; may be nil
	Pulled  *pull.Ledger  // which pods may use which image; nil: every pod may use every image

	Progress PullWatcher

	Host             Host
	ContainerManager ContainerManager
	Objects          Objects
	Events           status.Recorder
	Log              *slog.Logger
}

// A Driver carries out actions. It implements worker.Runtime except for Report.
type Driver struct {
	o       Options
	files   *podfiles.Store
	runtime internalapi.RuntimeService
	agent   string // value of LabelAgent
	kernel  podspec.Kernel
	puller  *puller
	events  podEvents
	volumes *volume.Maker
	// resolved is resolvedConf, except in tests.
	resolved string

	// Only FollowResolvConf uses these.
	followed, failed string // the node's files that all pods follow; the last error

	mu    sync.Mutex
	seen  map[podsync.Key]seen // as of the last Observe; guarded by mu
	clean map[string]bool      // pods that hold no resources any more, by UID; guarded by mu
}

// New returns a Driver.
func New(o Options) *Driver {
	d := &Driver{
		o:        o,
		runtime:  o.Runtime,
		agent:    podfiles.AgentID(o.Root),
		kernel:   readKernel(),
		events:   podEvents{o.Events},
		resolved: resolvedConf,
		files:    o.Files,
		seen:     map[podsync.Key]seen{},
		clean:    map[string]bool{},
		puller:   &puller{o: o, events: podEvents{o.Events}, queue: newQueue(o.Pulls)},
	}
	d.volumes = volume.New(o.Root, o.Objects, d)
	return d
}

// podEvents records events of pods and their containers.
type podEvents struct{ status.Recorder }

// record records an event of a container. The message names the container instead of the ID:
// otherwise no two events would be equal, to be counted as one.
func (e podEvents) record(pod *v1.Pod, container, id, kind, reason, message string) {
	if id != "" {
		message = strings.ReplaceAll(message, id, container)
	}
	e.Event(status.ContainerRef(pod, container), kind, reason, message)
}

// A Host has the current state of the node.
type Host interface {
	IPs() []string                                       // primary first; none if not known yet
	Allocatable() v1.ResourceList                        // of all pods together; nil if not known
	Handlers() []string                                  // names of the runtime's handlers; none if not known
	Features(handler string) *cri.RuntimeHandlerFeatures // nil if not known
}

// A ContainerManager gives a pod what it needs of its node besides files.
type ContainerManager interface {
	// CgroupParent returns the parent of the pod's cgroup; "" leaves it to the runtime.
	CgroupParent(pod *v1.Pod) string
	// UserNamespace returns the pod's user namespace, with its host IDs.
	UserNamespace(pod *v1.Pod, handler string) (*cri.UserNamespace, error)
	// Prepare makes what the pod needs, before its sandbox runs and before each of its
	// containers starts. It may be repeated.
	Prepare(ctx context.Context, pod *v1.Pod) error
	// Resize updates the pod's cgroup to the pod's resources. It is called after the
	// runtime's sandbox is updated, before containers get more and after they got less.
	Resize(pod *v1.Pod) error
	// Release frees all of it when nothing of the pod runs any more. It may be repeated.
	Release(uid string) error
}

// Objects are what pods refer to by name. An object that does not exist is an
// error of kind fault.NotFound. The objects are read-only and shared.
type Objects interface {
	volume.Objects
	RuntimeClass(name string) (*nodev1.RuntimeClass, error)
}
