package agent

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/admit"
	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/desired"
	"github.com/crisp-cri/crisp/agent/event"
	"github.com/crisp-cri/crisp/agent/evict"
	"github.com/crisp-cri/crisp/agent/imagegc"
	"github.com/crisp-cri/crisp/agent/logrotate"
	"github.com/crisp-cri/crisp/agent/podfiles"
	"github.com/crisp-cri/crisp/agent/pulled"
	"github.com/crisp-cri/crisp/agent/volume"
	"github.com/crisp-cri/crisp/internal/periodic"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	internalapi "k8s.io/cri-api/pkg/apis"
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
	o       Options
	host    host
	wanted  *desired.Manager
	files   *podfiles.Store
	roster  *roster
	grants  *grants
	driver  *criruntime.Driver
	pulled  *pulled.Ledger
	workers *workers
	events  event.Recorder
	evict   *evict.Manager
	// volumesDue tells that objects have changed which volumes may show.
	volumesDue chan struct{}
	pruned     time.Time // when images that are gone were looked for. Only sweep uses it.
	runtime    internalapi.RuntimeService
	images     internalapi.ImageManagerService
	collect    *imagegc.Collector
}

// newCare returns what will look after the node with these parts. The node is described
// from now on.
func newCare(with care) *care {
	c := &with
	c.describeNode()
	c.evict = evict.New(evict.Options{
		Thresholds: c.o.Care.Evict, MinReclaim: c.o.Care.EvictReclaim, MaxGrace: c.o.Care.EvictGrace, Transition: c.o.Care.EvictTransition,
		Node: c, Pods: c, Log: c.o.Log,
	})
	o := &c.o.Care
	c.collect = imagegc.New(imagegc.Options{Images: c.images, Node: c, High: o.ImageHigh, Low: o.ImageLow, Min: o.ImageMin, Max: o.ImageMax, Log: c.o.Log})
	return c
}

// tellSwap tells whoever trusts the node with Secrets that they may come to lie on a disk.
func (c *care) tellSwap(may bool) {
	if may {
		c.events.Event(event.Node(c.o.NodeName), v1.EventTypeWarning, "PossibleMemoryBackedVolumesOnDisk", "Secrets and other volumes in memory may be written to a disk: the node swaps, and its kernel has no tmpfs that does not (Linux 6.4 has)")
	}
}

// start begins to look after the node, until ctx ends. It is called when the runtime
// has answered and before the loop begins.
func (c *care) start(ctx context.Context) {
	if err := c.grants.open(ctx); err != nil {
		c.o.Log.WarnContext(ctx, "pods have no cgroups of their own", "err", err)
		c.events.Event(event.Node(c.o.NodeName), v1.EventTypeWarning, "CgroupsUnavailable", err.Error())
	}
	c.tellSwap(volume.MaySwap())
	o := &c.o.Care
	if o.ImageHigh > 0 {
		go c.collect.Run(ctx)
	}
	go c.evict.Run(ctx)
	if o.LogSize > 0 {
		go (&logrotate.Rotator{Runtime: c.driver, Size: o.LogSize, Files: o.LogFiles, Period: o.LogPeriod, Log: c.o.Log}).Run(ctx)
	}
	go c.keepVolumes(ctx)
	go periodic.Run(ctx, sweeping, c.sweep)
	go watchOOM(ctx, c.o.Log, func(text string) {
		c.events.Event(event.Node(c.o.NodeName), v1.EventTypeWarning, "SystemOOM", text)
	})
}

func (c *care) describeNode() {
	capacity := c.host.node.Node().Status.Capacity.DeepCopy()
	if c.o.Care.MaxPods > 0 {
		capacity[v1.ResourcePods] = *resource.NewQuantity(c.o.Care.MaxPods, resource.DecimalSI)
	}
	if disk, _, err := space(c.o.Root); err == nil {
		capacity[v1.ResourceEphemeralStorage] = *resource.NewQuantity(disk.Capacity, resource.BinarySI)
	}
	c.host.node.SetAllocatable(capacity, admit.Allocatable(capacity, c.o.Care.reserved(), evict.Reserved(c.o.Care.Evict, capacity), admit.Pooled(capacity)))
	c.host.node.Edit(func(n *v1.Node) {
		n.Labels = maps.Clone(n.Labels)
		maps.Copy(n.Labels, c.o.Care.NodeLabels)
	})
}

// ImagesFull is as imagegc.Node says.
func (c *care) ImagesFull(text string) {
	c.events.Event(event.Node(c.o.NodeName), v1.EventTypeWarning, "FreeDiskSpaceFailed", text)
}

// SetPressure is as evict.Node says.
func (c *care) SetPressure(kind v1.NodeConditionType, is bool, reason, message string) {
	s := v1.ConditionFalse
	if is {
		s = v1.ConditionTrue
		c.events.Event(event.Node(c.o.NodeName), v1.EventTypeNormal, strings.TrimPrefix(reason, "Kubelet"), fmt.Sprintf("Node %s status is now: %s", c.o.NodeName, reason))
	}
	c.host.node.SetCondition(kind, s, reason, message)
}
