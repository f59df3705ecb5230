package status

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

// A Store keeps the last status of each pod and passes on what has changed.
type Store struct {
	Node Node
	// HostIPs returns the node's addresses now; nil: they are Node's.
	HostIPs func() []string
	// Load returns the status that an earlier agent has saved, nil if none.
	Load func(*v1.Pod) *v1.PodStatus
	// Save is told each status that differs from the one before.
	Save func(*v1.Pod, *v1.PodStatus) error
	Log  *slog.Logger

	mu     sync.Mutex
	last   map[types.UID]entry // guarded by mu
	loaded map[types.UID]entry // of pods that were not reported yet; guarded by mu
}

type entry struct {
	key    podsync.Key
	status *v1.PodStatus // never changed, only replaced
}

// Report takes in what a worker has observed and returns the pod's status, which
// is nobody's to change. A pod that is nil has none.
func (s *Store) Report(pod *v1.Pod, have podsync.Have) *v1.PodStatus {
	if pod == nil {
		return nil
	}
	old := s.Get(pod.UID)
	if old == nil && s.Load != nil {
		old = s.Load(pod)
	}
	node := s.Node
	if s.HostIPs != nil {
		node.HostIPs = s.HostIPs()
	}
	now := Of(pod, have, old, node, time.Now())
	if old != nil && equality.Semantic.DeepEqual(*old, now) {
		s.put(pod, old)
		return old
	}
	s.put(pod, &now)
	if pod.DeletionTimestamp != nil && !slices.Contains(have.Files, string(pod.UID)) {
		return &now // there is nothing left to keep it with
	}
	if err := s.Save(pod, &now); err != nil {
		s.Log.Warn("status not kept", "pod", podsync.KeyOf(pod).String(), "err", err)
	}
	return &now
}

func (s *Store) put(pod *v1.Pod, status *v1.PodStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		s.last = map[types.UID]entry{}
	}
	delete(s.loaded, pod.UID)
	s.last[pod.UID] = entry{podsync.KeyOf(pod), status}
}

// Get returns the last status of a pod, nil if it has none. It is nobody's to
// change.
func (s *Store) Get(uid types.UID) *v1.PodStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last[uid].status
}

// Last is Get, or what an earlier agent has saved of a pod of which nothing was
// reported yet.
func (s *Store) Last(pod *v1.Pod) *v1.PodStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.last[pod.UID]; ok {
		return e.status
	}
	if e, ok := s.loaded[pod.UID]; ok {
		return e.status
	}
	if s.loaded == nil {
		s.loaded = map[types.UID]entry{}
	}
	e := entry{key: podsync.KeyOf(pod)}
	if s.Load != nil {
		e.status = s.Load(pod)
	}
	s.loaded[pod.UID] = e
	return e.status
}

// Drop drops what is known of one pod.
func (s *Store) Drop(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.last, uid)
	delete(s.loaded, uid)
}

// Forget drops what is known of the pods under key.
func (s *Store) Forget(key podsync.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, known := range []map[types.UID]entry{s.last, s.loaded} {
		maps.DeleteFunc(known, func(_ types.UID, e entry) bool { return e.key == key })
	}
}
