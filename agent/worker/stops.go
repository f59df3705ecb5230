package worker

import (
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"os"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/atomicfile"
	v1 "k8s.io/api/core/v1"
)

type stopsFile struct {
	Pods  map[string]podsync.Stop `json:"pods,omitempty"` // by namespace/name
	Drain *Drain                  `json:"drain,omitempty"`
}

// A Drain stops all pods, those of the lowest priority first.
type Drain struct {
	Since time.Time `json:"since"`
	// UpTo is the priority up to which pods have been stopped so far; nil if none have.
	UpTo *int32 `json:"upTo,omitempty"`
}

// Stops record which pods were stopped on request (crisp stop, crisp drain), so
// that they stay stopped under the next agent and after a reboot.
//
// A stop is kept by namespace and name, so that it also holds for another pod of that name,
// such as that of an edited manifest. It is forgotten when no pod of the name is wanted any
// more. The record of a pod that was started again stays until its containers run: those
// that the stop ended must run again whatever their restart policy, even if the agent dies
// meanwhile (podsync.Stop).
//
// They are in one file, and safe for concurrent use.
type Stops struct {
	path string
	log  *slog.Logger

	mu sync.Mutex
	f  stopsFile // the same as on disk; guarded by mu
}

// OpenStops reads the stops that an earlier agent recorded. A file that cannot be read is renamed
// to PATH.damaged; then no pod is stopped.
func OpenStops(path string, log *slog.Logger) *Stops {
	s := &Stops{path: path, log: log}
	if err := atomicfile.ReadJSON(path, &s.f); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.f = stopsFile{}
		log.Error("stopped pods not read: they start", "path", path, "err", err, "aside", os.Rename(path, path+".damaged") == nil)
	}
	return s
}

// changeLocked changes f, on disk first. If the write fails f stays as it was.
func (s *Stops) changeLocked(change func(*stopsFile)) error {
	next := stopsFile{Pods: maps.Clone(s.f.Pods), Drain: s.f.Drain}
	if next.Pods == nil {
		next.Pods = map[string]podsync.Stop{}
	}
	change(&next)
	if err := atomicfile.WriteJSON(s.path, next); err != nil {
		return err
	}
	s.f = next
	return nil
}

// Of returns the stop of a pod, its own or that of a drain; nil if it is not stopped.
func (s *Stops) Of(pod *v1.Pod) *podsync.Stop {
	s.mu.Lock()
	defer s.mu.Unlock()
	own, ok := s.f.Pods[podsync.KeyOf(pod).String()]
	if d := s.f.Drain; d != nil && !(ok && own.On()) && d.UpTo != nil && podsync.Priority(pod) <= *d.UpTo {
		return &podsync.Stop{Since: d.Since}
	}
	if !ok {
		return nil
	}
	return &own
}

// Stop records that the pods under a key are stopped. grace is in seconds; nil is each pod's own
// grace period. The time of an earlier Stop stays.
func (s *Stops) Stop(key podsync.Key, grace *int64, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changeLocked(func(f *stopsFile) {
		stop, ok := f.Pods[key.String()]
		if !ok || !stop.On() {
			stop.Since = now
		}
		f.Pods[key.String()] = podsync.Stop{Since: stop.Since, Grace: grace}
	})
}

// Start records that the pods under a key should run again. It returns false if they were not
// stopped by Stop.
func (s *Stops) Start(key podsync.Key, now time.Time) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stop, ok := s.f.Pods[key.String()]
	if !ok || !stop.On() {
		return false, nil
	}
	return true, s.changeLocked(func(f *stopsFile) {
		stop.Started = now
		f.Pods[key.String()] = stop
	})
}

func (s *Stops) Forget(key podsync.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.f.Pods[key.String()]; !ok {
		return
	}
	if err := s.changeLocked(func(f *stopsFile) { delete(f.Pods, key.String()) }); err != nil {
		s.log.Warn("stop of a pod not forgotten", "pod", key.String(), "err", err)
	}
}

// Keep drops the records of all pods but these.
func (s *Stops) Keep(wanted []*v1.Pod) {
	keep := map[string]bool{}
	for _, pod := range wanted {
		keep[podsync.KeyOf(pod).String()] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	stale := func(key string, _ podsync.Stop) bool { return !keep[key] }
	rest := maps.Clone(s.f.Pods)
	if maps.DeleteFunc(rest, stale); len(rest) == len(s.f.Pods) {
		return
	}
	if err := s.changeLocked(func(f *stopsFile) { maps.DeleteFunc(f.Pods, stale) }); err != nil {
		s.log.Warn("stops of pods not forgotten", "err", err)
	}
}

// Drain begins a drain, which stops no pods before Raise. It does nothing during a drain.
func (s *Stops) Drain(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.f.Drain != nil {
		return nil
	}
	return s.changeLocked(func(f *stopsFile) { f.Drain = &Drain{Since: now} })
}

// Draining reports whether there is a drain, and the priority up to which pods have been
// stopped; nil if none have.
func (s *Stops) Draining() (upTo *int32, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.f.Drain == nil {
		return nil, false
	}
	return s.f.Drain.UpTo, true
}

// lastPriority is the argument of Raise that completes a drain.
const lastPriority = math.MaxInt32

// Raise makes the drain stop the pods up to this priority. Without a drain it does nothing.
func (s *Stops) Raise(upTo int32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.f.Drain == nil {
		return nil
	}
	return s.changeLocked(func(f *stopsFile) { f.Drain = &Drain{f.Drain.Since, &upTo} })
}

// Uncordon ends a drain: these pods run again, except those that Stop has stopped.
func (s *Stops) Uncordon(pods []*v1.Pod, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.f.Drain == nil {
		return nil
	}
	return s.changeLocked(func(f *stopsFile) {
		for _, pod := range pods {
			key := podsync.KeyOf(pod).String()
			if own, ok := f.Pods[key]; !ok || !own.On() {
				f.Pods[key] = podsync.Stop{Since: f.Drain.Since, Started: now}
			}
		}
		f.Drain = nil
	})
}
