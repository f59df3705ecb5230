package agent

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/admit"
	"github.com/crisp-cri/crisp/agent/event"
	"github.com/crisp-cri/crisp/agent/evict"
	"github.com/crisp-cri/crisp/agent/imagegc"
	"github.com/crisp-cri/crisp/agent/logrotate"
	"github.com/crisp-cri/crisp/agent/volume"
	"github.com/crisp-cri/crisp/internal/periodic"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Care says how the agent looks after the node. The zero value has no thresholds
// and no bounds.
type Care struct {
	NoPodCgroups bool   // leave the cgroups of pods to the runtime
	CgroupRoot   string // cgroup above kubepods; "" is the kernel's root
	PodPIDs      int64  // processes of a pod; 0 is no limit
	MaxPods      int64
	NodeLabels   map[string]string
	// What of the node's resources is not for pods.
	SystemReserved, KubeReserved v1.ResourceList
	UnsafeSysctls                []string // that pods may set besides the safe ones
	NoPrivileged                 bool

	ImageHigh, ImageLow int           // percent; see imagegc
	ImageMin, ImageMax  time.Duration // ages
	LogSize             int64         // bytes from which a log is rotated; 0 is never
	LogFiles            int
	LogPeriod           time.Duration // how often the sizes of logs are looked at
	Evict               []evict.Threshold
	EvictReclaim        map[evict.Signal]evict.Amount // how much more there must be than the threshold
	EvictGrace          int64                         // seconds that a pod gets at most at a soft threshold
	EvictTransition     time.Duration                 // how long pressure lasts when its cause has gone
}

// reserved is what of the node's resources is not for pods, for whatever reason.
func (o *Care) reserved() v1.ResourceList {
	total := o.SystemReserved.DeepCopy()
	if total == nil {
		total = v1.ResourceList{}
	}
	for name, q := range o.KubeReserved {
		sum := total[name]
		sum.Add(q)
		total[name] = sum
	}
	return total
}

// care is what looks after the node.
type care struct {
	*agent
	events  event.Recorder
	evict   *evict.Manager
	collect *imagegc.Collector
	// admitted are the pods that were let in and may have no status yet. Only the
	// loop uses it.
	admitted map[types.UID]bool
	summed   map[types.UID]summed // of pods that are not changed in place. Only the loop uses it.
	sum      func(*v1.Pod) v1.ResourceList
	pruned   time.Time // when images that are gone were looked for. Only sweep uses it.
}

// newCare returns what will look after the node, which is described from now on.
func (a *agent) newCare(events event.Recorder) *care {
	c := &care{agent: a, events: events, admitted: map[types.UID]bool{}, summed: map[types.UID]summed{}, sum: a.roster.requests}
	c.describeNode()
	return c
}

// tellSwap tells whoever trusts the node with Secrets that they may come to lie on a disk.
func (c *care) tellSwap(may bool) {
	if may {
		c.events.Event(event.Node(c.NodeName), v1.EventTypeWarning, "PossibleMemoryBackedVolumesOnDisk", "Secrets and other volumes in memory may be written to a disk: the node swaps, and its kernel has no tmpfs that does not (Linux 6.4 has)")
	}
}

// start begins to look after the node, until ctx ends. It is called when the runtime
// has answered and before the loop begins.
func (c *care) start(ctx context.Context) {
	a, events := c.agent, c.events
	c.openCgroups(ctx)
	c.tellSwap(volume.MaySwap())
	a.admit, a.room, a.fits = c.admit, c.room, c.fits
	c.collect = imagegc.New(imagegc.Options{
		Images: a.images, InUse: c.imagesInUse, Space: c.imageSpace,
		High: a.Care.ImageHigh, Low: a.Care.ImageLow, Min: a.Care.ImageMin, Max: a.Care.ImageMax, Log: a.Log,
		Full: func(text string) {
			events.Event(event.Node(a.NodeName), v1.EventTypeWarning, "FreeDiskSpaceFailed", text)
		},
	})
	if a.Care.ImageHigh > 0 {
		go c.collect.Run(ctx)
	}
	c.evict = evict.New(evict.Options{
		Thresholds: a.Care.Evict, MinReclaim: a.Care.EvictReclaim, Apart: c.apart, MaxGrace: a.Care.EvictGrace, Transition: a.Care.EvictTransition, Log: a.Log,
		Measure: c.measure, Pods: c.usage, Reclaim: c.reclaim, Evict: c.end, Clean: c.clean, Condition: c.condition,
	})
	go c.evict.Run(ctx)
	if a.Care.LogSize > 0 {
		go (&logrotate.Rotator{Runtime: a.driver, Size: a.Care.LogSize, Files: a.Care.LogFiles, Period: a.Care.LogPeriod, Log: a.Log}).Run(ctx)
	}
	go c.keepVolumes(ctx)
	go periodic.Run(ctx, sweeping, c.sweep)
	go watchOOM(ctx, a.Log, func(text string) {
		events.Event(event.Node(a.NodeName), v1.EventTypeWarning, "SystemOOM", text)
	})
}

// openCgroups makes the cgroups above those of pods, as the runtime's cgroup driver
// wants them.
func (c *care) openCgroups(ctx context.Context) {
	driver := "cgroupfs"
	if resp, err := c.runtime.RuntimeConfig(ctx); err == nil && resp.GetLinux().GetCgroupDriver() == cri.CgroupDriver_SYSTEMD {
		driver = "systemd"
	}
	c.cgroupDriver.Store(&driver)
	if err := c.grants.open(c.runtime, driver == "systemd", c.node.Node().Status.Capacity.DeepCopy()); err != nil {
		c.Log.WarnContext(ctx, "pods have no cgroups of their own", "err", err)
		c.events.Event(event.Node(c.NodeName), v1.EventTypeWarning, "CgroupsUnavailable", err.Error())
	}
}

func (c *care) describeNode() {
	capacity := c.node.Node().Status.Capacity.DeepCopy()
	if c.Care.MaxPods > 0 {
		capacity[v1.ResourcePods] = *resource.NewQuantity(c.Care.MaxPods, resource.DecimalSI)
	}
	if disk, _, err := space(c.Root); err == nil {
		capacity[v1.ResourceEphemeralStorage] = *resource.NewQuantity(disk.Capacity, resource.BinarySI)
	}
	c.node.SetAllocatable(capacity, admit.Allocatable(capacity, c.Care.reserved(), evict.Reserved(c.Care.Evict, capacity), admit.Pooled(capacity)))
	c.node.Edit(func(n *v1.Node) {
		n.Labels = maps.Clone(n.Labels)
		maps.Copy(n.Labels, c.Care.NodeLabels)
	})
}

func (c *care) condition(kind v1.NodeConditionType, is bool, reason, message string) {
	s := v1.ConditionFalse
	if is {
		s = v1.ConditionTrue
		c.events.Event(event.Node(c.NodeName), v1.EventTypeNormal, strings.TrimPrefix(reason, "Kubelet"), fmt.Sprintf("Node %s status is now: %s", c.NodeName, reason))
	}
	c.node.SetCondition(kind, s, reason, message)
}
