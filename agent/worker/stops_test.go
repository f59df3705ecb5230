package worker

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func pod(name string, priority int32) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1.PodSpec{Priority: &priority}}
}

// check opens the store again, as the next agent does, and compares the pods that stay stopped with
// want.
func check(t *testing.T, path string, want map[*v1.Pod]bool) *Stops {
	t.Helper()
	s := OpenStops(path, slog.New(slog.DiscardHandler))
	for pod, stopped := range want {
		if got := s.Of(pod).On(); got != stopped {
			t.Errorf("%s: stopped %v, want %v", pod.Name, got, stopped)
		}
	}
	return s
}

// A stop survives the agent, until the pod is started or unwanted.
func TestStops(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stopped.json")
	web, db := pod("web", 0), pod("db", 0)
	now := time.Now()
	s := check(t, path, map[*v1.Pod]bool{web: false, db: false})
	grace := int64(3)
	for _, p := range []*v1.Pod{web, db} {
		if err := s.Stop(podsync.KeyOf(p), &grace, now); err != nil {
			t.Fatal(err)
		}
	}
	s = check(t, path, map[*v1.Pod]bool{web: true, db: true})
	if got := s.Of(web); *got.Grace != 3 || !got.Since.Equal(now) {
		t.Errorf("the stop is %+v", got)
	}
	if err := s.Stop(podsync.KeyOf(web), nil, now.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if got := s.Of(web); got.Grace != nil || !got.Since.Equal(now) {
		t.Errorf("stopped again, the stop is %+v", got)
	}
	if was, err := s.Start(podsync.KeyOf(web), now.Add(time.Hour)); !was || err != nil {
		t.Errorf("started: %v, %v", was, err)
	}
	if was, err := s.Start(podsync.KeyOf(web), now.Add(2*time.Hour)); was || err != nil {
		t.Errorf("started again: %v, %v", was, err)
	}
	s = check(t, path, map[*v1.Pod]bool{web: false, db: true})
	if got := s.Of(web); !got.Interrupted(now, now.Add(time.Minute)) || got.Interrupted(now.Add(2*time.Hour), now.Add(3*time.Hour)) {
		t.Errorf("what the stop has ended is not told from what came later: %+v", got)
	}
	s.Keep([]*v1.Pod{web})
	s.Forget(podsync.KeyOf(web))
	if s = check(t, path, map[*v1.Pod]bool{web: false, db: false}); s.Of(web) != nil {
		t.Errorf("not forgotten: %+v", s.Of(web))
	}
}

// A drain stops pods by priority, and does not affect pods that were stopped before.
func TestDrain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stopped.json")
	low, high, own := pod("low", 0), pod("high", 7), pod("own", 0)
	s := OpenStops(path, slog.New(slog.DiscardHandler))
	step := func(err error, want map[*v1.Pod]bool) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		s = check(t, path, want)
	}
	step(s.Stop(podsync.KeyOf(own), nil, time.Now()), map[*v1.Pod]bool{low: false, high: false, own: true})
	step(s.Drain(time.Now()), map[*v1.Pod]bool{low: false, high: false, own: true})
	step(s.Raise(0), map[*v1.Pod]bool{low: true, high: false, own: true})
	step(s.Drain(time.Now()), map[*v1.Pod]bool{low: true, high: false, own: true})
	step(s.Raise(lastPriority), map[*v1.Pod]bool{low: true, high: true, own: true})
	step(s.Uncordon([]*v1.Pod{low, high, own}, time.Now()), map[*v1.Pod]bool{low: false, high: false, own: true})
	if _, on := s.Draining(); on || s.Of(low) == nil {
		t.Errorf("draining %v; what low had run is %+v", on, s.Of(low))
	}
}

// An unreadable file neither prevents pods from running nor the next stop from being stored.
func TestDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stopped.json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	web := pod("web", 0)
	s := check(t, path, map[*v1.Pod]bool{web: false})
	if _, err := os.Stat(path + ".damaged"); err != nil {
		t.Error(err)
	}
	if err := s.Stop(podsync.KeyOf(web), nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	check(t, path, map[*v1.Pod]bool{web: true})
}
