package housekeeping

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/crisp-cri/crisp/agent/node"
	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func pod(name string, priority int32, request, use int64) podUse {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	p.Spec.Priority = &priority
	p.Spec.TerminationGracePeriodSeconds = new(int64(30))
	return podUse{
		Pod: p, Requests: v1.ResourceList{v1.ResourceMemory: *resource.NewQuantity(request, resource.BinarySI)},
		Use: map[v1.ResourceName]int64{v1.ResourceMemory: use, v1.ResourceEphemeralStorage: use},
	}
}

func TestRank(t *testing.T) {
	pods := []podUse{
		pod("modest", 0, 100, 50), pod("high", 10, 0, 1000), pod("most", 0, 100, 900), pod("more", 0, 0, 500), pod("modest-high", 10, 100, 50),
	}
	rank(pods, v1.ResourceMemory, v1.ResourceMemory)
	var got []string
	for _, p := range pods {
		got = append(got, p.Name)
	}
	if want := "most more high modest modest-high"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
}

func TestParse(t *testing.T) {
	got, err := ParseThresholds(DefaultEvictHard, "memory.available<20%", "memory.available=90s")
	if err != nil || len(got) != 6 || got[0].Amount.Amount != 100<<20 || got[1].Percent != 10 || got[5].Grace != 90*time.Second {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range [][3]string{{"memory<1Mi"}, {"memory.available"}, {"memory.available<x"}, {"memory.available<101%"}, {"", "memory.available<1Mi", ""}, {"", "memory.available<1Mi", "memory.available=x"}, {"memory.available<1Mi,memory.available<2Mi"}} {
		if _, err := ParseThresholds(bad[0], bad[1], bad[2]); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	if got, err := ParseThresholds("", "", ""); err != nil || len(got) > 0 {
		t.Errorf("nothing: %v, %v", got, err)
	}
}

// A scene is a node, and the actions on its pods.
type scene struct {
	mu sync.Mutex // held by Evict, and by the test while it looks

	apart bool
	begun time.Time                      // start of a scene whose disk fills later
	clean func(s *scene, p *v1.Pod) bool // nil means that all pods are cleaned at once

	free      int64
	ofPods    int64 // free memory, of the 500 bytes that all pods can have; 0 if that is not measured
	disk      int64
	pods      []podUse
	evicted   []string
	verdict   podsync.Verdict
	condition map[v1.NodeConditionType]bool
	reclaimed int
	nothing   bool // nothing can be reclaimed
}

func (s *scene) Measure(context.Context) map[Signal]node.Observation {
	if s.late() {
		s.disk = 90
	}
	now := map[Signal]node.Observation{Memory: {Available: s.free, Capacity: 1000}, NodeFS: {Available: s.disk, Capacity: 1000}}
	if s.ofPods > 0 {
		now[PodsMemory] = node.Observation{Available: s.ofPods, Capacity: 500}
	}
	return now
}

// late reports whether begun is set and twenty seconds have passed since.
func (s *scene) late() bool {
	return !s.begun.IsZero() && time.Since(s.begun) >= 20*time.Second
}

func (s *scene) ImagesApart() bool { return s.apart }

func (s *scene) Reclaim(context.Context) {
	if s.nothing {
		return
	}
	s.reclaimed++
	s.disk += 50
}

func (s *scene) SetPressure(kind v1.NodeConditionType, is bool, _, _ string) { s.condition[kind] = is }

func (s *scene) Usage(context.Context, bool) ([]podUse, error) { return slices.Clone(s.pods), nil }

func (s *scene) Evict(p *v1.Pod, v podsync.Verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evicted, s.verdict = append(s.evicted, p.Name), v
	for i := range s.pods {
		if s.pods[i].Pod == p {
			s.free += s.pods[i].Use[v1.ResourceMemory]
			s.pods = append(s.pods[:i:i], s.pods[i+1:]...)
			break
		}
	}
}

func (s *scene) Clean(p *v1.Pod) bool { return s.clean == nil || s.clean(s, p) }

func (s *scene) manager(t *testing.T, thresholds ...Threshold) (*evictor, *time.Time) {
	s.condition = map[v1.NodeConditionType]bool{}
	now := time.Unix(1000, 0)
	m := newEvictor(Rules{Evict: thresholds, EvictGrace: 20, EvictTransition: time.Minute}, s, s, slog.New(slog.DiscardHandler))
	m.now = func() time.Time { return now }
	return m, &now
}

// Only hard thresholds reserve something, even as a part of the capacity.
func TestReserved(t *testing.T) {
	capacity := v1.ResourceList{v1.ResourceMemory: resource.MustParse("1000Mi"), v1.ResourceEphemeralStorage: resource.MustParse("10Gi"), v1.ResourceCPU: resource.MustParse("2")}
	for hard, want := range map[string][2]string{
		"memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%": {"100Mi", "1Gi"},
		"memory.available<5%,imagefs.available<15%":                        {"50Mi", "0"},
	} {
		list, err := ParseThresholds(hard, "memory.available<50%,nodefs.available<50%", "memory.available=1s,nodefs.available=1s")
		if err != nil {
			t.Fatal(err)
		}
		got := Reserved(list, capacity)
		memory, disk := got[v1.ResourceMemory], got[v1.ResourceEphemeralStorage]
		if memory.String() != want[0] || disk.String() != want[1] || got.Cpu().Sign() != 0 {
			t.Errorf("%s reserves %v, want %v", hard, got, want)
		}
	}
}

func TestHard(t *testing.T) {
	s := &scene{free: 50, disk: 1000, pods: []podUse{pod("critical", 2_000_000_000, 0, 500), pod("a", 0, 0, 20), pod("b", 0, 0, 40), pod("c", 5, 0, 300)}}
	m, now := s.manager(t, Threshold{Signal: Memory, Amount: Amount{Amount: 100}})
	look := func() {
		t.Helper()
		if err := m.Look(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	look()
	if len(s.evicted) != 1 || s.evicted[0] != "b" || !s.condition[v1.NodeMemoryPressure] || s.condition[v1.NodeDiskPressure] {
		t.Fatalf("evicted %v, conditions %v", s.evicted, s.condition)
	}
	v := s.verdict
	if v.Reason != "Evicted" || *v.Grace != 1 || v.Condition.Type != v1.DisruptionTarget ||
		v.Message != "The node was low on resource: memory. Threshold quantity: 100, available: 50. Pod was using 40, request is 0, has larger consumption of memory. " {
		t.Errorf("%+v", v)
	}
	look() // 90 is still too little
	look()
	if len(s.evicted) != 2 || s.evicted[1] != "a" {
		t.Errorf("evicted %v", s.evicted)
	}
	*now = now.Add(59 * time.Second)
	if look(); !s.condition[v1.NodeMemoryPressure] || len(m.Pressure()) != 1 {
		t.Error("the pressure was over at once")
	}
	*now = now.Add(2 * time.Second)
	if look(); s.condition[v1.NodeMemoryPressure] || len(m.Pressure()) != 0 {
		t.Error("the pressure goes on")
	}
	s.free, s.pods = 10, []podUse{pod("critical", 2_000_000_000, 0, 500)}
	if look(); len(s.evicted) != 2 {
		t.Errorf("evicted %v", s.evicted)
	}
}

func TestSoft(t *testing.T) {
	s := &scene{free: 50, disk: 1000, pods: []podUse{pod("a", 0, 0, 500)}}
	m, now := s.manager(t, Threshold{Signal: Memory, Amount: Amount{Percent: 10}, Grace: 30 * time.Second})
	for _, step := range []struct {
		after time.Duration
		free  int64
		want  int
	}{{0, 50, 0}, {20 * time.Second, 50, 0}, {5 * time.Second, 200, 0}, {10 * time.Second, 50, 0}, {29 * time.Second, 50, 0}, {time.Second, 50, 1}} {
		*now = now.Add(step.after)
		s.free = step.free
		if err := m.Look(t.Context()); err != nil || len(s.evicted) != step.want {
			t.Errorf("%+v: evicted %v, %v", step, s.evicted, err)
		}
	}
	if g := s.verdict.Grace; g == nil || *g != 20 {
		t.Errorf("grace %v", g)
	}
}

// Unused containers and images are removed before a pod is evicted for disk space.
func TestDisk(t *testing.T) {
	s := &scene{free: 1000, disk: 80, pods: []podUse{pod("a", 0, 0, 10)}}
	m, _ := s.manager(t, Threshold{Signal: NodeFS, Amount: Amount{Percent: 10}})
	if err := m.Look(t.Context()); err != nil || s.reclaimed != 1 || len(s.evicted) > 0 || !s.condition[v1.NodeDiskPressure] {
		t.Errorf("reclaimed %d times, evicted %v, %v", s.reclaimed, s.evicted, err)
	}
	s.disk = 10
	if err := m.Look(t.Context()); err != nil || s.reclaimed != 2 || len(s.evicted) != 1 {
		t.Errorf("reclaimed %d times, evicted %v, %v", s.reclaimed, s.evicted, err)
	}
}

// A shortage ends only when EvictReclaim more than the threshold is free.
func TestMinReclaim(t *testing.T) {
	s := &scene{free: 90, disk: 1000, pods: []podUse{pod("a", 0, 0, 40), pod("b", 0, 0, 30), pod("c", 0, 0, 20)}}
	m, _ := s.manager(t, Threshold{Signal: Memory, Amount: Amount{Amount: 100}})
	reclaim, err := ParseReclaim("memory.available=5%")
	if err != nil {
		t.Fatal(err)
	}
	m.rules.EvictReclaim = reclaim
	for range 3 { // 130 is not enough, 160 is
		if err := m.Look(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(s.evicted, " "); got != "a b" {
		t.Errorf("evicted %q", got)
	}
	s.free = 101 // no new shortage: the extra 5 % is only required to end one
	if err := m.Look(t.Context()); err != nil || len(s.evicted) != 2 {
		t.Errorf("evicted %v, %v", s.evicted, err)
	}
	for _, bad := range []string{"memory.available<1", "memory=1", "memory.available=x"} {
		if _, err := ParseReclaim(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// Removing images from their own disk does not help another disk. The pod that fills the affected
// disk is evicted first.
func TestDisksApart(t *testing.T) {
	layers, logs := pod("layers", 0, 0, 500), pod("logs", 0, 0, 100)
	layers.Use[LayersDisk], layers.Use[NodeDisk] = 490, 10
	logs.Use[LayersDisk], logs.Use[NodeDisk] = 0, 100
	s := &scene{free: 1000, disk: 10, apart: true, pods: []podUse{layers, logs}}
	m, _ := s.manager(t, Threshold{Signal: NodeFS, Amount: Amount{Percent: 10}})
	if err := m.Look(t.Context()); err != nil || s.reclaimed != 0 || len(s.evicted) != 1 || s.evicted[0] != "logs" {
		t.Errorf("reclaimed %d times, evicted %v, %v", s.reclaimed, s.evicted, err)
	}
}

func TestLimits(t *testing.T) {
	use := func(bytes int64) map[v1.ResourceName]int64 {
		return map[v1.ResourceName]int64{v1.ResourceEphemeralStorage: bytes}
	}
	limit := resource.MustParse("1Ki")
	volume, layer, within := pod("volume", 0, 0, 0), pod("layer", 0, 0, 0), pod("within", 0, 0, 0)
	for _, p := range []podUse{volume, layer, within} {
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &limit}}}}
		p.Spec.Containers = []v1.Container{{Name: "a", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceEphemeralStorage: limit}}}}
	}
	sidecars, init, one, none := pod("sidecars", 0, 0, 0), pod("init", 0, 0, 0), pod("one", 0, 0, 0), pod("none", 0, 0, 0)
	always, twice := v1.ContainerRestartPolicyAlways, resource.MustParse("2Ki")
	limited := func(name string, by resource.Quantity) v1.Container {
		return v1.Container{Name: name, Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceEphemeralStorage: by}}}
	}
	sidecars.Spec.Containers, init.Spec.Containers = []v1.Container{limited("a", limit)}, []v1.Container{limited("a", limit)}
	sidecars.Spec.InitContainers = []v1.Container{limited("s", limit)}
	sidecars.Spec.InitContainers[0].RestartPolicy = &always
	init.Spec.InitContainers = []v1.Container{limited("i", twice)}
	own, both, neither := sidecars, sidecars, sidecars
	own.Containers = map[string]int64{"s": 1025}
	both.Use, neither.Use, init.Use = use(2049), use(2048), use(2048)
	one.Spec.Containers = []v1.Container{limited("a", limit), {Name: "b"}}
	none.Spec.Containers = []v1.Container{{Name: "b"}}
	one.Use, none.Use, none.Containers = use(1025), use(1<<30), map[string]int64{"b": 1 << 30}
	nothing := none
	nothing.Pod = none.DeepCopy()
	nothing.Spec.Containers = []v1.Container{limited("b", resource.MustParse("0"))}

	volume.Volumes = map[string]int64{"v": 1025}
	layer.Containers = map[string]int64{"a": 1025}
	within.Volumes, within.Containers = map[string]int64{"v": 1024}, map[string]int64{"a": 1024}
	for _, test := range []struct {
		pod  podUse
		want string
	}{
		{volume, `Usage of EmptyDir volume "v" exceeds the limit "1Ki". `}, {layer, `Container a exceeded its local ephemeral storage limit "1Ki". `}, {within, ""},
		{own, `Container s exceeded its local ephemeral storage limit "1Ki". `}, {both, "Pod ephemeral local storage usage exceeds the total limit of containers 2Ki. "}, {neither, ""},
		{one, "Pod ephemeral local storage usage exceeds the total limit of containers 1Ki. "}, {none, ""},
		{nothing, "Pod ephemeral local storage usage exceeds the total limit of containers 0. "},
		{init, ""}, // an init container stays within its limit
	} {
		got := ""
		if v := overLimit(test.pod); v != nil {
			got = v.Message
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.pod.Name, got, test.want)
		}
	}
}

// One pod is evicted before the kernel kills a process because all pods together exceed their
// limit, even if the machine has free memory.
func TestMemoryOfAllPods(t *testing.T) {
	for _, test := range []struct {
		grace time.Duration // of the threshold
		min   int64         // to reclaim
		free  []int64       // free memory at each check
		want  int           // pods evicted
	}{
		{0, 0, []int64{101, 99, 101, 99}, 2}, {0, 20, []int64{99, 101, 121}, 2}, {time.Minute, 0, []int64{99, 99}, 0},
	} {
		s := &scene{free: 900, disk: 1000, pods: []podUse{pod("a", 0, 0, 20), pod("b", 0, 0, 40), pod("c", 5, 0, 300)}}
		m, _ := s.manager(t, Threshold{Signal: Memory, Amount: Amount{Amount: 100}, Grace: test.grace})
		if test.min > 0 {
			m = newEvictor(Rules{Evict: []Threshold{{Signal: Memory, Amount: Amount{Amount: 100}}}, EvictReclaim: map[Signal]Amount{Memory: {Amount: test.min}}, EvictTransition: time.Minute}, s, s, slog.New(slog.DiscardHandler))
		}
		for _, s.ofPods = range test.free {
			if err := m.Look(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if len(s.evicted) != test.want || test.want > 0 && !s.condition[v1.NodeMemoryPressure] {
			t.Errorf("%+v: evicted %v, conditions %v", test, s.evicted, s.condition)
		}
	}
}

// A critical pod may exceed its disk limit, as with the kubelet. Another pod is evicted, and gets a
// second to end.
func TestLimitsOfCriticalPods(t *testing.T) {
	limit := resource.MustParse("1Ki")
	over := func(name string, priority int32) podUse {
		p := pod(name, priority, 0, 0)
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &limit}}}}
		p.Volumes = map[string]int64{"v": 1025}
		return p
	}
	s := &scene{free: 1000, disk: 1000, pods: []podUse{over("critical", 2_000_000_000), over("other", 0)}}
	m, _ := s.manager(t)
	if err := m.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(s.evicted) != 1 || s.evicted[0] != "other" || *s.verdict.Grace != 1 {
		t.Errorf("evicted %v, %+v", s.evicted, s.verdict)
	}
}

// The disk space of an evicted pod is freed with a delay. No other pod is evicted before that,
// unless it takes too long.
func TestNextVictimWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scene{free: 1000, disk: 50, pods: []podUse{pod("a", 0, 0, 20), pod("b", 0, 0, 40), pod("c", 0, 0, 10)}}
		m, _ := s.manager(t, Threshold{Signal: NodeFS, Amount: Amount{Amount: 100}})
		s.nothing, s.begun = true, time.Now()
		s.clean = func(s *scene, p *v1.Pod) bool { return p.Name == "b" && s.late() }
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go m.Run(ctx)
		at := func(after time.Duration, want string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			if got := strings.Join(s.evicted, " "); got != want {
				t.Errorf("%v later %q are evicted, want %q", after, got, want)
			}
		}
		at(15*time.Second, "b")           // whose end takes some time
		at(20*time.Second, "b a")         // 90 is still too little; the space of a is never freed
		at(15*time.Second, "b a")         // 15 s later at most a has been waited for
		at(cleaning+evictPeriod, "b a c") // and then no longer
	})
}
