// Package crix drives a container runtime for the agent's workers: it observes
// pods and does the actions of a plan, all through CRI and nothing else. The
// same driver runs against crispd, containerd or a fake.
//
// The runtime is the ground truth for what runs; the labels and annotations that
// crix puts on sandboxes and containers are how it finds its own again
// (agent/podspec). What pods become is translated there, and their files are kept
// by agent/podfiles: the driver gathers what the translation depends on, observes
// and acts. It reads, below the agent's root,
//
//	config.json             credentials of the node for registries, as docker writes it
//	images/                 with whose credentials images were pulled: see the package pulled
//	seccomp/                the profiles of type Localhost
//
// A Driver is used by all workers at once.
package crix

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/event"
	"github.com/crisp-cri/crisp/agent/keyring"
	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/pulled"
	"github.com/crisp-cri/crisp/agent/volume"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Options are the facts of the node.
type Options struct {
	Root           string // the agent's directory, absolute
	Files          *podfiles.Store
	NodeName       string
	NodeIPs        func() []string // addresses of the node now, primary first; nil is none
	ResolvConf     string          // of the node; what pods get for dnsPolicy Default
	ClusterDNS     []string        // name servers for dnsPolicy ClusterFirst; none: as Default
	ClusterDomain  string          // what the names of pods with a subdomain end in
	SeccompDefault bool            // RuntimeDefault for containers that name no profile
	NoCPUQuota     bool            // do not enforce CPU limits
	CPUPeriod      int64           // µs in which a CPU quota holds; 0 is 100000
	Pulls          Pulls
	MaxBackoff     time.Duration // of containers that exit again and again; 0 is 300 s

	Plugins *keyring.Plugins // know more credentials; may be nil
	Pulled  *pulled.Ledger   // who may use which image; nil: everybody all of them

	Objects Objects        // may be nil: there are none
	Events  event.Recorder // nil: they are not recorded
	Log     *slog.Logger

	// Allocatable is what the pods of the node can have together. May be nil: it is not
	// known.
	Allocatable func() v1.ResourceList
	// Handlers are the names of the runtime's handlers, for a RuntimeClass to be
	// checked against; none: it is not checked. May be nil.
	Handlers func() []string
	// Features are what a handler of the runtime can do; nil is nothing. May be nil.
	Features func(handler string) *cri.RuntimeHandlerFeatures
	// CgroupParent and UserNS say where a pod's cgroup is and which IDs it has.
	// If nil, the runtime makes the cgroup and pods have the node's IDs.
	CgroupParent func(*v1.Pod) string
	UserNS       func(pod *v1.Pod, handler string) (*cri.UserNamespace, error)
	// Prepare makes what a pod needs on this node besides its files, before its
	// sandbox runs and before each of its containers starts; Release undoes it
	// when nothing of the pod runs any more. Both may be repeated; may be nil.
	Prepare func(context.Context, *v1.Pod) error
	Release func(uid string) error
	// PodCgroup is told of resources that have changed: after the runtime was,
	// before the containers get more and after they got less. May be nil.
	PodCgroup func(*v1.Pod) error
}

// A Driver carries out actions. It implements worker.Runtime but for Report.
type Driver struct {
	Options
	files   *podfiles.Store
	runtime internalapi.RuntimeService
	images  internalapi.ImageManagerService
	agent   string // value of LabelAgent
	kernel  podspec.Kernel
	pulls   *queue
	volumes *volume.Maker
	// resolved is resolvedConf; another one in tests.
	resolved string

	mu    sync.Mutex
	seen  map[podsync.Key]seen // as of the last Observe; guarded by mu
	clean map[string]bool      // pods that hold nothing any more, by UID; guarded by mu
}

// New returns a Driver. It acts once it has a runtime, by Connect.
func New(o Options) *Driver {
	if o.Events == nil {
		o.Events = event.Discard
	}
	if o.Objects == nil {
		o.Objects = none{}
	}
	d := &Driver{
		Options:  o,
		agent:    agentID(o.Root),
		kernel:   readKernel(),
		pulls:    newQueue(o.Pulls),
		resolved: resolvedConf,
		files:    o.Files,
		seen:     map[podsync.Key]seen{},
		clean:    map[string]bool{},
	}
	d.volumes = volume.New(o.Root, o.Objects, shown{d})
	return d
}

// Connect gives the driver its runtime, before its first action.
func (d *Driver) Connect(runtime internalapi.RuntimeService, images internalapi.ImageManagerService) {
	d.runtime, d.images = runtime, images
}

// tell records an event of a container. Its message names the container and not
// the ID, or no two events would be the same.
func (d *Driver) tell(pod *v1.Pod, container, id, kind, reason, message string) {
	if id != "" {
		message = strings.ReplaceAll(message, id, container)
	}
	list := "containers"
	switch {
	case slices.ContainsFunc(pod.Spec.InitContainers, func(c v1.Container) bool { return c.Name == container }):
		list = "initContainers"
	case slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool { return c.Name == container }):
		list = "ephemeralContainers"
	}
	d.Events.Event(event.Container(pod, list, container), kind, reason, message)
}
