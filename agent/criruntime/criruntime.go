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
//	images/                 the credentials with which images were pulled: see pullrecords
//	seccomp/                the profiles of type Localhost
//
// All workers share one Driver.
package criruntime

import (
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/event"
	"github.com/crisp-cri/crisp/agent/keyring"
	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/pullrecords"
	"github.com/crisp-cri/crisp/agent/volume"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
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
	Pulls          Pulls
	MaxBackoff     time.Duration // of containers that keep exiting; 0 is podsync.DefaultMaxBackoff

	Plugins *keyring.Plugins    // provide more credentials; may be nil
	Pulled  *pullrecords.Ledger // which pods may use which image; nil: every pod may use every image

	Progress PullWatcher

	Host             Host
	ContainerManager ContainerManager
	Objects          Objects
	Events           event.Recorder
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

	mu    sync.Mutex
	seen  map[podsync.Key]seen // as of the last Observe; guarded by mu
	clean map[string]bool      // pods that hold no resources any more, by UID; guarded by mu
}

// New returns a Driver.
func New(o Options) *Driver {
	d := &Driver{
		o:        o,
		runtime:  o.Runtime,
		agent:    agentID(o.Root),
		kernel:   readKernel(),
		events:   podEvents{o.Events},
		resolved: resolvedConf,
		files:    o.Files,
		seen:     map[podsync.Key]seen{},
		clean:    map[string]bool{},
	}
	d.puller = &puller{
		images: o.Images, config: filepath.Join(o.Root, "config.json"), plugins: o.Plugins, pulled: o.Pulled, objects: o.Objects, host: o.Host,
		events: d.events, queue: newQueue(o.Pulls), progress: o.Progress, log: o.Log,
	}
	d.volumes = volume.New(o.Root, o.Objects, shown{d})
	return d
}

// podEvents records events of pods and their containers.
type podEvents struct{ event.Recorder }

// record records an event of a container. The message names the container instead of the ID:
// otherwise no two events would be equal, to be counted as one.
func (e podEvents) record(pod *v1.Pod, container, id, kind, reason, message string) {
	if id != "" {
		message = strings.ReplaceAll(message, id, container)
	}
	e.Event(event.Container(pod, container), kind, reason, message)
}
