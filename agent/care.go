package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/admit"
	"github.com/crisp-cri/crisp/agent/cgroup"
	"github.com/crisp-cri/crisp/agent/crix"
	"github.com/crisp-cri/crisp/agent/event"
	"github.com/crisp-cri/crisp/agent/evict"
	"github.com/crisp-cri/crisp/agent/idrange"
	"github.com/crisp-cri/crisp/agent/imagegc"
	"github.com/crisp-cri/crisp/agent/logrotate"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/agent/status"
	"golang.org/x/sys/unix"
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
	cgroups *cgroup.Tree // nil: the runtime's
	ids     *idrange.Pool
	evict   *evict.Manager
	collect *imagegc.Collector
	// admitted are the pods that were let in and may have no status yet. Only the
	// loop uses it.
	admitted map[types.UID]bool
	pruned   time.Time // when images that are gone were looked for. Only sweep uses it.
}

// newCare returns what will look after the node, which is described from now on.
func (a *agent) newCare(events event.Recorder) (*care, error) {
	ids, err := idrange.Open(filepath.Join(a.Root, "pods"), a.Log)
	if err != nil {
		return nil, err
	}
	c := &care{agent: a, events: events, ids: ids, admitted: map[types.UID]bool{}}
	c.describeNode()
	return c, nil
}

// start begins to look after the node, until ctx ends. It is called when the runtime
// has answered and before the loop begins.
func (c *care) start(ctx context.Context) {
	a, events := c.agent, c.events
	c.openCgroups(ctx)
	d := a.driver
	d.Features = func(handler string) *cri.RuntimeHandlerFeatures { return a.gate.Get().Handler(handler).GetFeatures() }
	d.UserNS, d.Prepare, d.Release = c.userNS, c.prepare, c.release
	if c.cgroups != nil {
		d.CgroupParent = func(pod *v1.Pod) string { return c.cgroups.Parent(string(pod.UID), status.QOS(pod)) }
		d.PodCgroup = c.limit
	}
	a.admit, a.fits = c.admit, c.fits
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
		Measure: c.measure, Pods: c.usage, Reclaim: c.reclaim, Evict: c.end, Condition: c.condition,
	})
	go c.evict.Run(ctx)
	if a.Care.LogSize > 0 {
		go (&logrotate.Rotator{Runtime: d, Size: a.Care.LogSize, Files: a.Care.LogFiles, Period: a.Care.LogPeriod, Log: a.Log}).Run(ctx)
	}
	go c.keepVolumes(ctx)
	go c.sweep(ctx)
	go watchOOM(ctx, a.Log, func(text string) {
		events.Event(event.Node(a.NodeName), v1.EventTypeWarning, "SystemOOM", text)
	})
}

func (c *care) describeNode() {
	capacity := c.node.Node().Status.Capacity.DeepCopy()
	if c.Care.MaxPods > 0 {
		capacity[v1.ResourcePods] = *resource.NewQuantity(c.Care.MaxPods, resource.DecimalSI)
	}
	hard := int64(0)
	for _, t := range c.Care.Evict {
		if t.Signal == evict.Memory && t.Grace == 0 {
			hard = t.Amount.Amount
		}
	}
	c.node.SetAllocatable(capacity, admit.Allocatable(capacity, c.Care.reserved(), *resource.NewQuantity(hard, resource.BinarySI)))
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

// openCgroups makes the cgroups above those of pods. Without them pods run all
// the same, where the runtime puts them.
func (c *care) openCgroups(ctx context.Context) {
	driver := "cgroupfs"
	if resp, err := c.runtime.RuntimeConfig(ctx); err == nil && resp.GetLinux().GetCgroupDriver() == cri.CgroupDriver_SYSTEMD {
		driver = "systemd"
	}
	c.cgroupDriver.Store(&driver)
	if c.Care.NoPodCgroups {
		return
	}
	capacity := c.node.Node().Status.Capacity.DeepCopy()
	all := admit.Allocatable(capacity, c.Care.reserved(), resource.Quantity{})
	tree, err := cgroup.Open(c.Care.CgroupRoot, driver == "systemd", cgroup.Limits{Shares: cgroup.Shares(all.Cpu().MilliValue()), Memory: all.Memory().Value()})
	if err != nil {
		c.Log.WarnContext(ctx, "pods have no cgroups of their own", "err", err)
		c.events.Event(event.Node(c.NodeName), v1.EventTypeWarning, "CgroupsUnavailable", err.Error())
		return
	}
	c.cgroups = tree
}

// prepare is crix.Options.Prepare.
func (c *care) prepare(ctx context.Context, pod *v1.Pod) error {
	if err := checkAppArmor(pod); err != nil {
		return err
	}
	if c.cgroups == nil {
		return nil
	}
	if err := c.limit(ctx, pod); err != nil {
		return crix.Reasoned("FailedCreatePodContainer", err)
	}
	return nil
}

// limit gives the pod's cgroup the values of the kubelet.
func (c *care) limit(_ context.Context, pod *v1.Pod) error {
	requests, limits := c.driver.Requests(pod), c.driver.Limits(pod)
	l := cgroup.Limits{Shares: cgroup.Shares(0), Pids: c.Care.PodPIDs}
	class := status.QOS(pod)
	if class != v1.PodQOSBestEffort {
		l.Shares = cgroup.Shares(requests.Cpu().MilliValue())
		if class == v1.PodQOSGuaranteed || declared(pod, v1.ResourceCPU) {
			if !c.NoCPUQuota {
				l.Period = cgroup.DefaultPeriod
				l.Quota = cgroup.Quota(limits.Cpu().MilliValue(), cgroup.DefaultPeriod)
			}
		}
		if class == v1.PodQOSGuaranteed || declared(pod, v1.ResourceMemory) {
			l.Memory = limits.Memory().Value()
		}
	}
	if err := c.weigh(); err != nil {
		return err
	}
	return c.cgroups.Make(string(pod.UID), class, l)
}

// declared reports whether the pod as a whole, or each of its containers, has a
// limit of the resource.
func declared(pod *v1.Pod, name v1.ResourceName) bool {
	if all := pod.Spec.Resources; all != nil {
		if q, ok := all.Limits[name]; ok {
			return !q.IsZero()
		}
	}
	return !slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c v1.Container) bool {
		q := c.Resources.Limits[name]
		return q.IsZero()
	})
}

// weigh has the burstable pods weigh together what they ask for together.
func (c *care) weigh() error {
	milli := int64(0)
	for _, pod := range c.active(c.wanted.Pods()) {
		if status.QOS(pod) == v1.PodQOSBurstable {
			requests := c.driver.Requests(pod)
			milli += requests.Cpu().MilliValue()
		}
	}
	return c.cgroups.Weigh(milli)
}

// release is crix.Options.Release.
func (c *care) release(_ context.Context, uid string) error {
	if c.cgroups != nil {
		if err := c.cgroups.Remove(uid); err != nil {
			return err
		}
	}
	return c.ids.Free(uid)
}

// userNS is crix.Options.UserNS.
func (c *care) userNS(pod *v1.Pod, handler string) (*cri.UserNamespace, error) {
	if pod.Spec.HostUsers == nil || *pod.Spec.HostUsers {
		return &cri.UserNamespace{Mode: cri.NamespaceMode_NODE}, nil
	}
	if f := c.driver.Features(handler); f != nil && !f.UserNamespaces {
		return nil, fmt.Errorf("the runtime's handler %q has no user namespaces", handler)
	}
	return c.ids.Of(string(pod.UID))
}

// active are the pods that have not ended.
func (c *care) active(pods []*v1.Pod) []*v1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(pod *v1.Pod) bool {
		s := c.status.Get(pod.UID)
		return s != nil && (s.Phase == v1.PodFailed || s.Phase == v1.PodSucceeded)
	})
}

// beside are the pods that were let in before this one and have not ended.
func (c *care) beside(pod *v1.Pod, others []*v1.Pod) []*v1.Pod {
	there := map[types.UID]bool{}
	list := slices.DeleteFunc(c.active(others), func(o *v1.Pod) bool {
		there[o.UID] = true
		in := c.admitted[o.UID] || c.status.Get(o.UID) != nil || c.driver.LoadStatus(o) != nil
		return o.UID == pod.UID || !in
	})
	maps.DeleteFunc(c.admitted, func(uid types.UID, _ bool) bool { return !there[uid] })
	return list
}

func (c *care) place() *admit.Node {
	n := c.node.Node()
	return &admit.Node{
		Name: c.NodeName, Labels: n.Labels, Allocatable: n.Status.Allocatable, UnsafeSysctls: c.Care.UnsafeSysctls, NoPrivileged: c.Care.NoPrivileged,
		Pressure: c.evict.Pressure(), Features: c.gate.Get().Features, Requests: c.driver.Requests, Handler: c.handlerOf,
	}
}

func (c *care) handlerOf(pod *v1.Pod) *cri.RuntimeHandlerFeatures {
	handler := ""
	if pod.Spec.RuntimeClassName != nil {
		class, err := c.wanted.RuntimeClass(*pod.Spec.RuntimeClassName)
		if err != nil {
			return nil // it may come yet; the sandbox waits for it
		}
		handler = class.Handler
	}
	return c.driver.Features(handler)
}

// admit decides whether a new pod may run; others may have to go for it.
func (c *care) admit(pod *v1.Pod, others []*v1.Pod) *podsync.Verdict {
	v, victims := admit.Check(pod, c.beside(pod, others), c.place())
	if v != nil {
		c.events.Event(event.Pod(pod), v1.EventTypeWarning, v.Reason, v.Message)
		return v
	}
	c.admitted[pod.UID] = true
	for _, victim := range victims {
		c.end(victim, admit.Preempted())
	}
	return nil
}

func (c *care) fits(pod *v1.Pod, others []*v1.Pod) *podsync.Pending {
	if v := admit.Fits(pod, c.beside(pod, others), c.place()); v != nil {
		return &podsync.Pending{Reason: v1.PodReasonDeferred, Message: v.Message}
	}
	return nil
}

// end ends a pod for good.
func (c *care) end(pod *v1.Pod, v podsync.Verdict) {
	c.events.Event(event.Pod(pod), v1.EventTypeWarning, v.Reason, v.Message)
	if pool := c.pool.Load(); pool != nil {
		pool.Fail(podsync.KeyOf(pod), pod.UID, v)
	}
}

const (
	// refresh is how often volumes are brought up to date besides when an object
	// changes.
	refresh = 30 * time.Second
	// pruning is how often images that are gone are looked for.
	pruning = 10 * time.Minute
	// sweeping is how often is cleared away what was left behind.
	sweeping = time.Minute
)

// keepVolumes has volumes show what their objects say.
func (c *care) keepVolumes(ctx context.Context) {
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	told := map[types.UID]string{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-c.volumesDue:
		}
		for _, pod := range c.active(c.wanted.Pods()) {
			err := c.driver.Volumes().Refresh(pod)
			if err == nil {
				delete(told, pod.UID)
			} else if told[pod.UID] != err.Error() {
				told[pod.UID] = err.Error()
				c.events.Event(event.Pod(pod), v1.EventTypeWarning, "FailedMount", "volume not brought up to date: "+err.Error())
			}
		}
	}
}

// refreshVolumes has volumes brought up to date soon.
func (a *agent) refreshVolumes() {
	select {
	case a.volumesDue <- struct{}{}:
	default: // it is due already
	}
}

// sweep clears away what pods left behind whose end was not seen.
func (c *care) sweep(ctx context.Context) {
	tick := time.NewTicker(sweeping)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !c.wanted.Ready() {
			continue
		}
		known := map[string]bool{}
		for _, pod := range slices.Concat(c.wanted.Pods(), c.driver.Accepted()) {
			known[string(pod.UID)] = true
		}
		var err error
		if c.cgroups != nil {
			err = errors.Join(c.weigh(), c.cgroups.Sweep(func(uid string) bool { return known[uid] }))
		}
		if err = errors.Join(err, c.sweepLogs(known), c.sweepLinks(), c.prunePulled(ctx)); err != nil {
			c.Log.WarnContext(ctx, "not all that was left behind could be removed", "err", err)
		}
	}
}

// sweepLogs removes the logs of pods that are not known, if all logs there are
// this agent's.
func (c *care) sweepLogs(known map[string]bool) error {
	if rest, err := filepath.Rel(c.Root, c.LogDir); err != nil || !filepath.IsLocal(rest) {
		return nil
	}
	entries, err := os.ReadDir(c.LogDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		words := strings.Split(e.Name(), "_") // namespace, name, UID
		if len(words) != 3 || known[words[2]] {
			continue
		}
		if info, infoErr := e.Info(); infoErr != nil || time.Since(info.ModTime()) < sweeping {
			continue // its pod may be about to be accepted
		}
		err = errors.Join(err, os.RemoveAll(filepath.Join(c.LogDir, e.Name())))
	}
	return err
}

// prunePulled forgets who may use images that are gone.
func (c *care) prunePulled(ctx context.Context) error {
	if time.Since(c.pruned) < pruning {
		return nil
	}
	c.pruned = time.Now()
	images, err := c.images.ListImages(ctx, nil)
	if err != nil {
		return crix.Fault(err)
	}
	there := map[string]bool{}
	for _, image := range images {
		there[image.Id] = true
	}
	return c.driver.Pulled.Prune(func(id string) bool { return there[id] }, c.pruned)
}

// sweepLinks removes links to logs of this agent's pods that are gone.
func (c *care) sweepLinks() error {
	if c.LogLinks == "" {
		return nil
	}
	entries, err := os.ReadDir(c.LogLinks)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		link := filepath.Join(c.LogLinks, e.Name())
		target, readErr := os.Readlink(link)
		if rest, relErr := filepath.Rel(c.LogDir, target); readErr != nil || relErr != nil || !filepath.IsLocal(rest) {
			continue
		}
		if _, statErr := os.Stat(target); errors.Is(statErr, fs.ErrNotExist) {
			err = errors.Join(err, os.Remove(link))
		}
	}
	return err
}

// profiles are those that the kernel has loaded.
const profiles = "/sys/kernel/security/apparmor/profiles"

// checkAppArmor reports a profile that is not loaded, before the runtime does.
func checkAppArmor(pod *v1.Pod) error {
	want := map[string]bool{}
	add := func(p *v1.AppArmorProfile) {
		if p != nil && p.Type == v1.AppArmorProfileTypeLocalhost && p.LocalhostProfile != nil {
			want[*p.LocalhostProfile] = true
		}
	}
	if sc := pod.Spec.SecurityContext; sc != nil {
		add(sc.AppArmorProfile)
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.SecurityContext != nil {
			add(c.SecurityContext.AppArmorProfile)
		}
	}
	if len(want) == 0 {
		return nil
	}
	data, err := os.ReadFile(profiles)
	if errors.Is(err, fs.ErrNotExist) {
		return crix.Reasoned("AppArmor", errors.New("Cannot enforce AppArmor: AppArmor is not enabled on the host"))
	}
	if err != nil {
		return crix.Reasoned("AppArmor", fmt.Errorf("Cannot enforce AppArmor: %w", err))
	}
	for line := range strings.Lines(string(data)) { // NAME (MODE)
		if i := strings.LastIndex(line, " ("); i > 0 {
			delete(want, line[:i])
		}
	}
	for name := range want {
		return crix.Reasoned("AppArmor", fmt.Errorf("Cannot enforce AppArmor: profile %q is not loaded", name))
	}
	return nil
}

// space is that of the file system of a path.
func space(path string) (bytes, inodes evict.Observation, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return bytes, inodes, fmt.Errorf("%s: %w", path, err)
	}
	size := int64(s.Bsize)
	return evict.Observation{Available: int64(s.Bavail) * size, Capacity: int64(s.Blocks) * size},
		evict.Observation{Available: int64(s.Ffree), Capacity: int64(s.Files)}, nil
}

func (c *care) imagesDir(ctx context.Context) (string, error) {
	resp, err := c.images.ImageFsInfo(ctx)
	if err != nil {
		return "", crix.Fault(err)
	}
	for _, f := range resp.GetImageFilesystems() {
		if dir := f.GetFsId().GetMountpoint(); dir != "" {
			return dir, nil
		}
	}
	return "", errors.New("the runtime does not tell where its images are")
}

func (c *care) imageSpace(ctx context.Context) (capacity, available int64, err error) {
	dir, err := c.imagesDir(ctx)
	if err != nil {
		return 0, 0, err
	}
	bytes, _, err := space(dir)
	return bytes.Capacity, bytes.Available, err
}

// imagesInUse are those of all containers, dead ones too, and those that pods
// mount.
func (c *care) imagesInUse(ctx context.Context) (map[string]bool, error) {
	list, err := c.runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, crix.Fault(err)
	}
	used := map[string]bool{}
	for _, container := range list {
		for _, name := range []string{container.GetImageId(), container.GetImageRef(), container.GetImage().GetImage()} {
			used[name] = true
		}
	}
	for _, pod := range slices.Concat(c.active(c.wanted.Pods()), c.driver.Accepted()) {
		for i := range pod.Spec.Volumes {
			if image := pod.Spec.Volumes[i].Image; image != nil {
				if resp, err := c.images.ImageStatus(ctx, &cri.ImageSpec{Image: image.Reference}, false); err == nil {
					used[resp.GetImage().GetId()] = true
				}
			}
		}
	}
	return used, nil
}
