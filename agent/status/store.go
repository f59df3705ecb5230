package status

import (
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A Store keeps the last status of each pod and passes on what has changed.
type Store struct {
	Node Node
	// Save is told each status that differs from the one before.
	Save func(*v1.Pod, *v1.PodStatus) error
	Log  *slog.Logger

	mu   sync.Mutex
	last map[podsync.Key]entry // guarded by mu
}

type entry struct {
	uid    types.UID
	status v1.PodStatus
}

// Report takes in what a worker has observed. A pod that is nil is forgotten.
func (s *Store) Report(pod *v1.Pod, have podsync.Have) {
	if pod == nil {
		return
	}
	now := Of(pod, have, s.Node, time.Now())
	key := podsync.KeyOf(pod)
	s.mu.Lock()
	if s.last == nil {
		s.last = map[podsync.Key]entry{}
	}
	was, ok := s.last[key]
	same := ok && was.uid == pod.UID && reflect.DeepEqual(was.status, now)
	s.last[key] = entry{pod.UID, now}
	s.mu.Unlock()
	if same {
		return
	}
	if err := s.Save(pod, &now); err != nil {
		s.Log.Warn("status not kept", "pod", key.String(), "err", err)
	}
}

// Forget drops the status of a pod that is not wanted any more.
func (s *Store) Forget(key podsync.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.last, key)
}
