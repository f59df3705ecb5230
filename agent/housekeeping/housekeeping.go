// Package housekeeping looks after the node that pods run on: it evicts pods before
// a resource runs out, collects images, rotates logs, keeps volumes up to date with their
// objects, reports OOM kills of the whole node as events, and removes leftovers.
package housekeeping

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/event"
	"github.com/crisp-cri/crisp/agent/evict"
	"github.com/crisp-cri/crisp/agent/imagegc"
	"github.com/crisp-cri/crisp/agent/logrotate"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/podworkers"
	"github.com/crisp-cri/crisp/agent/pullrecords"
	"github.com/crisp-cri/crisp/agent/volume"
	"github.com/crisp-cri/crisp/internal/periodic"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
)

// Options configure a Keeper.
type Options struct {
	Rules    Rules
	NodeName string
	Root     string // directory of the agent's files
	LogDir   string // of the pods' logs
	LogLinks string // directory of links to the containers' logs; "" for none

	Runtime internalapi.RuntimeService
	Images  internalapi.ImageManagerService
	Pulled  *pullrecords.Ledger
	Driver  *criruntime.Driver
	Pods    Pods
	Files   *podfiles.Store
	Workers *podworkers.Workers
	Cgroups Cgroups
	Node    *node.State
	Events  event.Recorder
	Log     *slog.Logger
}

// Rules configure the housekeeping. The zero value has no thresholds and no bounds.
type Rules struct {
	ImageHigh, ImageLow int           // percent; see imagegc
	ImageMin, ImageMax  time.Duration // ages
	LogSize             int64         // bytes above which a log is rotated; 0 is never
	LogFiles            int           // files of a log, with the current one
	LogPeriod           time.Duration // how often the sizes of logs are checked
	Evict               []evict.Threshold
	EvictReclaim        map[evict.Signal]evict.Amount // how much more than the threshold must be free before a shortage is over
	EvictGrace          int64                         // maximum grace period at a soft threshold, in seconds
	EvictTransition     time.Duration                 // how long a pressure condition stays after its cause has gone
}

// Pods are the pods of the node (nodepods.Pods).
type Pods interface {
	Ready() bool // whether all sources have reported
	Wanted() []*v1.Pod
	Allocated() []*v1.Pod                 // the wanted pods, with the resources allocated to them
	Active(pods []*v1.Pod) []*v1.Pod      // those of pods that have not ended
	Finished(pod *v1.Pod) bool            // whether the pod has failed or succeeded
	Requests(pod *v1.Pod) v1.ResourceList // with the pod's overhead
}

// Cgroups are the cgroups of pods (containermanager.Manager).
type Cgroups interface {
	// Memory returns how much of the memory of all pods together is left; ok is false if that is
	// not limited or not known.
	Memory() (o evict.Observation, ok bool)
	// Sweep removes idle cgroups of all pods but the known ones, by UID.
	Sweep(known map[string]bool) error
}

// A Keeper looks after one node.
type Keeper struct {
	o       Options
	evict   *evict.Manager
	collect *imagegc.Collector
	// volumesDue receives a value when objects that volumes may project have changed.
	volumesDue chan struct{}
	pruned     time.Time // when pull records were last pruned; only sweep uses it
}

// New returns a Keeper.
func New(o Options) *Keeper {
	k := &Keeper{o: o, volumesDue: make(chan struct{}, 1)}
	r := &o.Rules
	k.evict = evict.New(evict.Options{
		Thresholds: r.Evict, MinReclaim: r.EvictReclaim, MaxGrace: r.EvictGrace, Transition: r.EvictTransition, Node: k, Pods: k, Log: o.Log,
	})
	k.collect = imagegc.New(imagegc.Options{Images: o.Images, Node: k, High: r.ImageHigh, Low: r.ImageLow, Min: r.ImageMin, Max: r.ImageMax, Log: o.Log})
	return k
}

// Pressure returns the pressure conditions of the node that are true now.
func (k *Keeper) Pressure() []v1.NodeConditionType { return k.evict.Pressure() }

// Begin starts the housekeeping, which ends with ctx. The runtime must already have answered.
func (k *Keeper) Begin(ctx context.Context) {
	k.warnOfSwap(volume.MaySwap())
	r := &k.o.Rules
	if r.ImageHigh > 0 {
		go k.collect.Run(ctx)
	}
	go k.evict.Run(ctx)
	if r.LogSize > 0 {
		go (&logrotate.Rotator{Runtime: k.o.Driver, Size: r.LogSize, Files: r.LogFiles, Period: r.LogPeriod, Log: k.o.Log}).Run(ctx)
	}
	go k.keepVolumes(ctx)
	go periodic.Run(ctx, sweeping, k.sweep)
	go watchOOM(ctx, k.o.Log, func(text string) { k.warn("SystemOOM", text) })
}

// warn records an event of the node.
func (k *Keeper) warn(reason, text string) {
	k.o.Events.Event(event.Node(k.o.NodeName), v1.EventTypeWarning, reason, text)
}

// warnOfSwap records an event of the node if volumes in memory, such as Secrets, may be swapped
// to a disk.
func (k *Keeper) warnOfSwap(may bool) {
	if may {
		k.warn("PossibleMemoryBackedVolumesOnDisk", "Secrets and other volumes in memory may be written to a disk: the node swaps, and its kernel has no tmpfs without swap (Linux 6.4 has)")
	}
}

// ImagesFull implements imagegc.Node.
func (k *Keeper) ImagesFull(text string) {
	k.warn("FreeDiskSpaceFailed", text)
}

// SetPressure implements evict.Node.
func (k *Keeper) SetPressure(kind v1.NodeConditionType, is bool, reason, message string) {
	s := v1.ConditionFalse
	if is {
		s = v1.ConditionTrue
		k.o.Events.Event(event.Node(k.o.NodeName), v1.EventTypeNormal, strings.TrimPrefix(reason, "Kubelet"), fmt.Sprintf("Node %s status is now: %s", k.o.NodeName, reason))
	}
	k.o.Node.SetCondition(kind, s, reason, message)
}
