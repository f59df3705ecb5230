package housekeeping

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/periodic"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/wait"
	helper "k8s.io/component-helpers/resource"
)

// A Signal is a resource that a node can run short of.
type Signal string

// The signals, by the kubelet's names.
const (
	Memory      Signal = "memory.available"
	PodsMemory  Signal = "allocatableMemory.available" // of what all pods together can have
	NodeFS      Signal = "nodefs.available"
	NodeInodes  Signal = "nodefs.inodesFree"
	ImageFS     Signal = "imagefs.available"
	ImageInodes Signal = "imagefs.inodesFree"
	PIDs        Signal = "pid.available"
)

// signalOrder is the order in which signals are checked.
var signalOrder = []Signal{Memory, PodsMemory, NodeFS, NodeInodes, ImageFS, ImageInodes, PIDs}

// A meaning is the condition that a signal sets, and the resource by whose use pods are ranked.
// If images have their own file system, pods are ranked by disk instead of resource.
type meaning struct {
	condition      v1.NodeConditionType
	resource, disk v1.ResourceName
}

var meanings = map[Signal]meaning{
	Memory:      {v1.NodeMemoryPressure, v1.ResourceMemory, v1.ResourceMemory},
	PodsMemory:  {v1.NodeMemoryPressure, v1.ResourceMemory, v1.ResourceMemory},
	NodeFS:      {v1.NodeDiskPressure, v1.ResourceEphemeralStorage, NodeDisk},
	NodeInodes:  {v1.NodeDiskPressure, "inodes", NodeFiles},
	ImageFS:     {v1.NodeDiskPressure, v1.ResourceEphemeralStorage, LayersDisk},
	ImageInodes: {v1.NodeDiskPressure, "inodes", LayersFiles},
	PIDs:        {v1.NodePIDPressure, "pids", "pids"},
}

// A podUse is a running pod with its usage.
type podUse struct {
	*v1.Pod
	Requests v1.ResourceList
	Use      map[v1.ResourceName]int64 // memory, ephemeral-storage in bytes; pids, inodes
	// Containers has the bytes of the containers' writable layers and logs, Volumes those of the
	// emptyDirs; both by name.
	Containers, Volumes map[string]int64
}

// An evictNode measures its resources, and reclaims them.
type evictNode interface {
	// Measure returns an observation for each signal that can be measured.
	Measure(context.Context) map[Signal]node.Observation
	// ImagesApart reports whether images and writable layers have a file system of their
	// own.
	ImagesApart() bool
	// Reclaim removes dead containers and unused images.
	Reclaim(context.Context)
	// SetPressure is called once for each condition, and whenever it changes.
	SetPressure(kind v1.NodeConditionType, is bool, reason, message string)
}

// evictPods measures the node's pods, and evicts them.
type evictPods interface {
	// Usage returns all running pods, or only those with their own disk limits.
	Usage(ctx context.Context, all bool) ([]podUse, error)
	Evict(*v1.Pod, podsync.Verdict)
	// Clean reports whether an evicted pod has released its resources.
	Clean(*v1.Pod) bool
}

const (
	// cleaning is how long to wait for evicted pods to release their resources before
	// another pod is evicted; cleaningPeriod is how often to check. Both are the kubelet's.
	cleaning, cleaningPeriod = 30 * time.Second, time.Second

	// atOnce is the grace period in seconds at a hard threshold or a pod's own limit, whatever the
	// pod asks for. It is the kubelet's.
	atOnce = 1

	evictPeriod            = 10 * time.Second
	DefaultEvictTransition = 5 * time.Minute
)

// An evictor ends pods before the node runs out of memory, disk or process IDs, by the kubelet's
// rules. It checks every ten seconds:
//
//	available < threshold?  ─▶ set the node's condition (MemoryPressure …)
//	  for its grace period? ─▶ reclaim what is unused (dead containers, images)
//	  still?                ─▶ evict one pod and wait until its resources are free
//
// Critical pods are never evicted. Pods that use more than they request go first; of these, those of
// the lowest priority; and of these, those that exceed their requests most.
type evictor struct {
	rules    Rules
	node     evictNode
	pods     evictPods
	log      *slog.Logger
	now      func() time.Time
	met      map[Threshold]time.Time            // since when each threshold has been met
	last     map[v1.NodeConditionType]time.Time // when the cause of each condition was last observed
	reported map[v1.NodeConditionType]bool      // what SetPressure was last called with

	mu       sync.Mutex
	pressure []v1.NodeConditionType // guarded by mu
}

// newEvictor returns an evictor. Before Run there is no pressure. As with the kubelet, hard thresholds of
// the machine's memory are those of the pods' too: else the kernel would kill one of their
// processes, any of them, where memory is reserved for others.
func newEvictor(rules Rules, node evictNode, pods evictPods, log *slog.Logger) *evictor {
	rules.EvictReclaim = maps.Clone(rules.EvictReclaim)
	for _, t := range rules.Evict {
		if t.Signal == Memory && t.Grace == 0 {
			t.Signal = PodsMemory
			rules.Evict = append(slices.Clip(rules.Evict), t)
			if more, ok := rules.EvictReclaim[Memory]; ok {
				rules.EvictReclaim[PodsMemory] = more
			}
		}
	}
	return &evictor{
		rules: rules, node: node, pods: pods, log: log, now: time.Now,
		met: map[Threshold]time.Time{}, last: map[v1.NodeConditionType]time.Time{}, reported: map[v1.NodeConditionType]bool{},
	}
}

// Run calls Look at once and then every period, until ctx ends.
func (m *evictor) Run(ctx context.Context) {
	look := func(ctx context.Context) {
		if err := m.Look(ctx); err != nil && ctx.Err() == nil {
			m.log.DebugContext(ctx, "usage of pods not measured", "err", err)
		}
	}
	look(ctx)
	periodic.Run(ctx, evictPeriod, look)
}

// Pressure returns the conditions that are true now.
func (m *evictor) Pressure() []v1.NodeConditionType {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.pressure)
}

// Look checks once. It evicts each pod that exceeds one of its own disk limits, or else at most
// one pod because of a shortage on the node. Then it waits until they have released their
// resources, for at most 30 s.
func (m *evictor) Look(ctx context.Context) error {
	due := m.due(m.node.Measure(ctx))
	pods, err := m.pods.Usage(ctx, len(due) > 0)
	if err != nil {
		return err
	}
	pods = slices.DeleteFunc(pods, func(p podUse) bool { return podsync.Priority(p.Pod) >= podsync.SystemCritical })
	var gone []*v1.Pod
	for _, p := range pods {
		if v := overLimit(p); v != nil {
			m.log.WarnContext(ctx, "pod evicted", "pod", podsync.KeyOf(p.Pod).String(), "why", v.Message)
			m.pods.Evict(p.Pod, *v)
			gone = append(gone, p.Pod)
		}
	}
	if len(gone) > 0 || len(due) == 0 {
		m.await(ctx, gone)
		return nil
	}
	apart := m.node.ImagesApart()
	onNode := due[0].Signal == NodeFS || due[0].Signal == NodeInodes // the file system of logs and volumes
	if meanings[due[0].Signal].condition == v1.NodeDiskPressure && !(apart && onNode) {
		m.node.Reclaim(ctx)
		if due = m.due(m.node.Measure(ctx)); len(due) == 0 {
			return nil
		}
	}
	if victim := m.evictFor(ctx, due[0], pods, apart); victim != nil {
		m.await(ctx, []*v1.Pod{victim})
	}
	return nil
}

// await returns when all of these pods have released their resources, or after cleaning.
func (m *evictor) await(ctx context.Context, pods []*v1.Pod) {
	wait.PollUntilContextTimeout(ctx, cleaningPeriod, cleaning, true, func(context.Context) (bool, error) {
		return !slices.ContainsFunc(pods, func(p *v1.Pod) bool { return !m.pods.Clean(p) }), nil
	})
}

// The use of each file system by a pod, as keys of Pod.Use. If images have a file system of
// their own, it has the writable layers too; logs and volumes are on the node's.
const (
	NodeDisk    v1.ResourceName = "nodefs"
	NodeFiles   v1.ResourceName = "nodefs-inodes"
	LayersDisk  v1.ResourceName = "imagefs"
	LayersFiles v1.ResourceName = "imagefs-inodes"
)

// A need is a threshold that has been met for its grace period.
type need struct {
	Threshold
	node.Observation
}

// due records which thresholds are met, and returns those that have been met for their grace
// period, in the order of signals.
func (m *evictor) due(now map[Signal]node.Observation) []need {
	var list []need
	for _, s := range signalOrder {
		for _, t := range m.rules.Evict {
			o, known := now[s]
			if t.Signal != s || !known {
				continue
			}
			enough := t.of(o.Capacity)
			if _, ok := m.met[t]; ok {
				enough += m.rules.EvictReclaim[s].of(o.Capacity)
			}
			if o.Available >= enough {
				delete(m.met, t)
				continue
			}
			if _, ok := m.met[t]; !ok {
				m.met[t] = m.now()
			}
			m.last[meanings[s].condition] = m.now()
			if m.now().Sub(m.met[t]) >= t.Grace {
				list = append(list, need{t, o})
			}
		}
	}
	m.reportPressure()
	return list
}

// messages are the kubelet's.
var messages = map[v1.NodeConditionType][2][2]string{
	v1.NodeMemoryPressure: {{"KubeletHasSufficientMemory", "kubelet has sufficient memory available"}, {"KubeletHasInsufficientMemory", "kubelet has insufficient memory available"}},
	v1.NodeDiskPressure:   {{"KubeletHasNoDiskPressure", "kubelet has no disk pressure"}, {"KubeletHasDiskPressure", "kubelet has disk pressure"}},
	v1.NodePIDPressure:    {{"KubeletHasSufficientPID", "kubelet has sufficient PID available"}, {"KubeletHasInsufficientPID", "kubelet has insufficient PID available"}},
}

// reportPressure calls SetPressure for the conditions that have changed. A condition stays true
// for EvictTransition after its cause was last observed.
func (m *evictor) reportPressure() {
	var pressure []v1.NodeConditionType
	for _, kind := range []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
		last, ever := m.last[kind]
		is := ever && (m.now().Equal(last) || m.now().Sub(last) < m.rules.EvictTransition)
		if is {
			pressure = append(pressure, kind)
		}
		if reported, ok := m.reported[kind]; !ok || reported != is {
			m.reported[kind] = is
			text := messages[kind][0]
			if is {
				text = messages[kind][1]
			}
			m.node.SetPressure(kind, is, text[0], text[1])
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pressure = pressure
}

// rank sorts pods in the order in which they are evicted for lack of a resource. name is its
// name in their requests, use its key in Pod.Use.
func rank(pods []podUse, name, use v1.ResourceName) {
	over := func(p podUse) int64 {
		q := p.Requests[name]
		return p.Use[use] - q.Value()
	}
	within := func(p podUse) int {
		if over(p) > 0 {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(pods, func(a, b podUse) int {
		return cmp.Or(
			cmp.Compare(within(a), within(b)),
			cmp.Compare(podsync.Priority(a.Pod), podsync.Priority(b.Pod)),
			cmp.Compare(over(b), over(a)),
		)
	})
}

// evictFor evicts the pod of these that ranks first, and returns it; nil without pods.
func (m *evictor) evictFor(ctx context.Context, n need, pods []podUse, apart bool) *v1.Pod {
	name := meanings[n.Signal].resource
	use := name
	if apart {
		use = meanings[n.Signal].disk
	}
	if len(pods) == 0 {
		return nil
	}
	rank(pods, name, use)
	p := pods[0]
	quantity := func(v int64) string { return resource.NewQuantity(v, resource.BinarySI).String() }
	text := fmt.Sprintf("The node was low on resource: %s. Threshold quantity: %s, available: %s. ", name, quantity(n.of(n.Capacity)), quantity(n.Available))
	if request := p.Requests[name]; p.Use[use] > request.Value() {
		text += fmt.Sprintf("Pod was using %s, request is %s, has larger consumption of %s. ", quantity(p.Use[use]), request.String(), name)
	}
	grace := int64(atOnce)
	if n.Grace > 0 {
		grace = m.rules.EvictGrace
		if own := p.Spec.TerminationGracePeriodSeconds; own != nil {
			grace = min(grace, *own)
		}
	}
	m.log.WarnContext(ctx, "pod evicted", "pod", podsync.KeyOf(p.Pod).String(), "why", text)
	m.pods.Evict(p.Pod, verdict(text, grace))
	return p.Pod
}

func verdict(text string, grace int64) podsync.Verdict {
	return podsync.Verdict{
		Reason: podsync.EvictedReason, Message: text, Grace: &grace,
		Condition: &v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: text},
	}
}

// overLimit returns the verdict on a pod that uses more disk than one of its limits, or nil. As in
// the kubelet, the pod as a whole has the limits of its containers together as soon as one of them
// has one. That is as large as an init container may need.
func overLimit(p podUse) *podsync.Verdict {
	text := ""
	for _, v := range p.Spec.Volumes {
		if v.EmptyDir == nil || v.EmptyDir.SizeLimit == nil || v.EmptyDir.SizeLimit.Sign() <= 0 {
			continue
		}
		if limit := v.EmptyDir.SizeLimit; p.Volumes[v.Name] > limit.Value() {
			text = fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, limit.String())
		}
	}
	total, limited := helper.PodLimits(p.Pod, helper.PodResourcesOptions{})[v1.ResourceEphemeralStorage]
	if limited && text == "" && p.Use[v1.ResourceEphemeralStorage] > total.Value() {
		text = fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", total.String())
	}
	for c := range podsync.Lasting(&p.Spec) {
		if limit := c.Resources.Limits.StorageEphemeral(); limit.Sign() > 0 && text == "" && p.Containers[c.Name] > limit.Value() {
			text = fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String())
		}
	}
	if text == "" {
		return nil
	}
	v := verdict(text, atOnce)
	return &v
}
