// Package housekeeping looks after the node that pods run on: it evicts pods before a resource
// runs out (evictor), collects images (collector), rotates logs (rotator), keeps volumes up to date
// with their objects, reports OOM kills of the whole node as events, and removes leftovers. These
// parts do not know each other; the Keeper starts them, and measures the node for them.
package housekeeping

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/autoupdate"
	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/pull"
	"github.com/crisp-cri/crisp/agent/status"
	"github.com/crisp-cri/crisp/agent/volume"
	"github.com/crisp-cri/crisp/agent/worker"
	"github.com/crisp-cri/crisp/internal/periodic"
	"github.com/crisp-cri/crisp/internal/poke"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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
	Pulled  *pull.Ledger
	Updates *autoupdate.Store
	Driver  *criruntime.Driver
	Pods    *node.Pods
	Files   *podfiles.Store
	Workers *worker.Workers
	Cgroups *node.ContainerManager
	Node    *node.State
	Events  status.Recorder
	Log     *slog.Logger
}

// Rules configure the housekeeping. The zero value has no thresholds and no bounds.
type Rules struct {
	ImageHigh       int           // percent of disk usage at which images are removed; 0 and 100 are never
	ImageLow        int           // percent of disk usage at which no more are removed
	ImageMin        time.Duration // minimum age of an image to be removed for space
	ImageMax        time.Duration // how long an image may be unused before it is removed; 0 is forever
	LogSize         int64         // bytes above which a log is rotated; 0 is never
	LogFiles        int           // files of a log, with the current one; no fewer than two
	LogPeriod       time.Duration // how often the sizes of logs are checked
	Evict           []Threshold
	EvictReclaim    map[Signal]Amount // how much more than the threshold must be free before a shortage is over
	EvictGrace      int64             // maximum grace period at a soft threshold, in seconds
	EvictTransition time.Duration     // how long a pressure condition stays after its cause has gone
}

// A Keeper looks after one node.
type Keeper struct {
	o       Options
	evict   *evictor
	collect *collector
	// volumesDue receives a value when objects that volumes may project have changed.
	volumesDue chan struct{}
	pruned     time.Time // when pull records were last pruned; only sweep uses it
}

// New returns a Keeper.
func New(o Options) *Keeper {
	k := &Keeper{o: o, volumesDue: make(chan struct{}, 1)}
	k.evict = newEvictor(o.Rules, k, k, o.Log)
	k.collect = newCollector(o.Rules, o.Images, k, o.Log)
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
		go (&rotator{Rules: k.o.Rules, Runtime: k.o.Driver, Log: k.o.Log}).Run(ctx)
	}
	go k.keepVolumes(ctx)
	go periodic.Run(ctx, sweeping, k.sweep)
	go watchOOM(ctx, k.o.Log, func(text string) { k.warn("SystemOOM", text) })
}

// warn records an event of the node.
func (k *Keeper) warn(reason, text string) {
	k.o.Events.Event(status.NodeRef(k.o.NodeName), v1.EventTypeWarning, reason, text)
}

// warnOfSwap records an event of the node if volumes in memory, such as Secrets, may be swapped
// to a disk.
func (k *Keeper) warnOfSwap(may bool) {
	if may {
		k.warn("PossibleMemoryBackedVolumesOnDisk", "Secrets and other volumes in memory may be written to a disk: the node swaps, and its kernel has no tmpfs without swap (Linux 6.4 has)")
	}
}

// ImagesFull implements imageNode.
func (k *Keeper) ImagesFull(text string) {
	k.warn("FreeDiskSpaceFailed", text)
}

// SetPressure implements evictNode.
func (k *Keeper) SetPressure(kind v1.NodeConditionType, is bool, reason, message string) {
	s := v1.ConditionFalse
	if is {
		s = v1.ConditionTrue
		k.o.Events.Event(status.NodeRef(k.o.NodeName), v1.EventTypeNormal, strings.TrimPrefix(reason, "Kubelet"), fmt.Sprintf("Node %s status is now: %s", k.o.NodeName, reason))
	}
	k.o.Node.SetCondition(kind, s, reason, message)
}

// refresh is how often volumes are refreshed even if no object has changed.
const refresh = 30 * time.Second

// keepVolumes keeps volumes up to date with their objects, until ctx ends.
func (k *Keeper) keepVolumes(ctx context.Context) {
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	reported := map[types.UID]string{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-k.volumesDue:
		}
		failing := map[types.UID]string{}
		for _, pod := range k.o.Pods.Active(k.o.Pods.Wanted()) {
			err := k.o.Driver.Volumes().Refresh(pod)
			if err == nil {
				continue
			}
			failing[pod.UID] = err.Error()
			if reported[pod.UID] != err.Error() {
				k.o.Events.Event(status.PodRef(pod), v1.EventTypeWarning, "FailedMount", "volume not brought up to date: "+err.Error())
			}
		}
		reported = failing
	}
}

// RefreshVolumes makes the Keeper refresh volumes soon. It is called when objects that they may
// project have changed.
func (k *Keeper) RefreshVolumes() { poke.Wake(k.volumesDue) }
