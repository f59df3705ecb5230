package workload_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
)

// A fleet is a world whose pods change at random.
type fleet struct {
	world
	rng     *rand.Rand
	history []string
	objects map[string]manifest.Object // cache of parsed objects
}

func newFleet(t *testing.T, seed uint64) *fleet {
	return &fleet{world: world{t: t, now: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)}, rng: rand.New(rand.NewPCG(seed, 3)), objects: map[string]manifest.Object{}}
}

func (f *fleet) chance(oneIn int) bool { return f.rng.IntN(oneIn) == 0 }

func (f *fleet) breaks(seed int, format string, args ...any) {
	f.t.Helper()
	f.t.Fatalf("seed %d: %s\n%s", seed, fmt.Sprintf(format, args...), strings.Join(f.history[max(0, len(f.history)-20):], "\n"))
}

func (f *fleet) note(format string, args ...any) {
	f.history = append(f.history, f.now.Format("15:04:05 ")+fmt.Sprintf(format, args...))
}

// planned plans, and checks that the names of pods are unique.
func (f *fleet) planned(seed int) {
	f.note("%s", f.step())
	seen := map[string]bool{}
	for _, p := range f.pods {
		if seen[p.Name] {
			f.breaks(seed, "two pods are %s", p.Name)
		}
		seen[p.Name] = true
	}
}

// available returns how many pods have been ready for long enough.
func (f *fleet) available(minReady int) (n int) {
	for _, p := range f.pods {
		for _, c := range p.Status.Conditions {
			if c.Type == v1.PodReady && c.Status == v1.ConditionTrue && !c.LastTransitionTime.Add(time.Duration(minReady)*time.Second).After(f.now) {
				n++
			}
		}
	}
	return n
}

// A Deployment and its pods go through random events. An update must never make more pods
// unavailable than allowed, nor exceed the surge. When the events stop, all pods must have the
// current template and be available.
func TestRolloutConverges(t *testing.T) {
	for seed := range 60 {
		f := newFleet(t, uint64(seed))
		minReady := f.rng.IntN(2) * 5
		surge, unavailable := f.rng.IntN(3), f.rng.IntN(3)
		if surge == 0 {
			unavailable = max(unavailable, 1)
		}
		strategy := fmt.Sprintf("%d+%d", surge, unavailable)
		if f.chance(6) {
			strategy, surge, unavailable = "Recreate", 0, math.MaxInt32
		}
		replicas, image, paused := 1+f.rng.IntN(4), 1, false
		for range 40 {
			switch f.rng.IntN(12) {
			case 0:
				image = 1 + f.rng.IntN(4) // may be an earlier one
			case 1:
				replicas = f.rng.IntN(6)
			case 2:
				paused = f.chance(3)
			case 3, 4, 5, 6:
				if len(f.pods) > 0 {
					f.ready(f.pods[f.rng.IntN(len(f.pods))].Name)
				}
			case 7:
				if len(f.pods) > 0 {
					f.pods[f.rng.IntN(len(f.pods))].Status = v1.PodStatus{Phase: v1.PodRunning}
				}
			case 8:
				if len(f.pods) > 0 {
					f.end(f.pods[f.rng.IntN(len(f.pods))].Name, v1.PodFailed)
				}
			default:
				f.now = f.now.Add(time.Duration(f.rng.IntN(8)) * time.Second)
			}
			f.rollout(seed, replicas, minReady, strategy, surge, unavailable, image, paused)
		}
		f.note("calm")
		for range 40 {
			for _, p := range f.pods {
				if p.Status.Phase == "" || p.Status.Phase == v1.PodRunning && len(p.Status.Conditions) == 0 {
					f.ready(p.Name)
				}
			}
			f.now = f.now.Add(5 * time.Second)
			f.rollout(seed, replicas, minReady, strategy, surge, unavailable, image, false)
		}
		if got := f.available(minReady); got != replicas || len(f.pods) != replicas {
			f.breaks(seed, "%d pods, %d available, want %d", len(f.pods), got, replicas)
		}
		for _, p := range f.pods {
			if got := p.Spec.Containers[0].Image; !strings.HasSuffix(got, fmt.Sprintf(":%d", image)) {
				f.breaks(seed, "%s has the image %s, want %d", p.Name, got, image)
			}
		}
	}
}

// rollout plans, and checks the limits of the update.
func (f *fleet) rollout(seed, replicas, minReady int, strategy string, surge, unavailable, image int, paused bool) {
	f.t.Helper()
	key := fmt.Sprint(replicas, minReady, strategy, image)
	if f.objects[key] == nil {
		f.objects[key] = deployment(f.t, replicas, minReady, strategy, image)
	}
	f.object = f.objects[key]
	f.object.(*appsv1.Deployment).Spec.Paused = paused
	total, available := len(f.pods), f.available(minReady)
	f.planned(seed)
	if got := len(f.pods); got > max(total, replicas+surge) {
		f.breaks(seed, "%d pods, at most %d are allowed", got, replicas+surge)
	}
	if got := f.available(minReady); got < min(available, replicas-unavailable) {
		f.breaks(seed, "%d pods are available of %d, at least %d must be", got, available, replicas-unavailable)
	}
}
