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
	"k8s.io/utils/keymutex"
)

// mutexes is the number of mutexes that all pods share: enough that two pods whose statuses are
// made at a time rarely have the same one.
const mutexes = 256

// A Store keeps the last status of each pod, and saves it when it has changed.
type Store struct {
	host   Host
	files  Files
	probes Probes
	log    *slog.Logger

	making keymutex.KeyMutex // the locks of UIDs whose status is being made

	mu     sync.Mutex
	last   map[types.UID]entry // guarded by mu
	loaded map[types.UID]entry // saved statuses of pods not reported yet; guarded by mu
}

// A Host has the current state of the node.
type Host interface {
	IPs() []string       // primary first
	RuntimeName() string // the prefix of container IDs
}

type Files interface {
	LoadStatus(*v1.Pod) *v1.PodStatus // the saved status; nil without one
	// SaveStatus is called with each status that differs from the one before.
	SaveStatus(*v1.Pod, *v1.PodStatus) error
}

// Probes returns the results of the probes of a pod's containers.
type Probes interface {
	Of(*v1.Pod, podsync.Have) map[string]podsync.Probes // by container ID
}

func NewStore(host Host, files Files, probes Probes, log *slog.Logger) *Store {
	return &Store{host: host, files: files, probes: probes, log: log,
		making: keymutex.NewHashed(mutexes), last: map[types.UID]entry{}, loaded: map[types.UID]entry{}}
}

type entry struct {
	key    podsync.Key
	status *v1.PodStatus // never changed, only replaced

	pod     *v1.Pod      // nil if status was loaded
	have    podsync.Have // from which status was made
	unsaved bool         // status differs from what was saved
}

// Report makes and saves the status of a pod from what its worker has observed. The status is
// shared and read-only; it is nil for a nil pod.
func (s *Store) Report(pod *v1.Pod, have podsync.Have) *v1.PodStatus {
	if pod == nil {
		return nil
	}
	defer s.lock(pod.UID)()
	last := s.entry(pod.UID)
	old := last.status
	if old == nil {
		old = s.files.LoadStatus(pod)
	}
	now := s.of(pod, have, old)
	// The maps belong to the worker.
	have.Failures, have.Restarted = maps.Clone(have.Failures), maps.Clone(have.Restarted)
	next := entry{key: podsync.KeyOf(pod), status: &now, pod: pod, have: have}
	if old != nil && equality.Semantic.DeepEqual(*old, now) {
		next.status = old
		if !last.unsaved {
			s.put(pod.UID, next)
			return old
		}
	}
	s.put(pod.UID, next)
	if pod.DeletionTimestamp != nil && !slices.Contains(have.Files, string(pod.UID)) {
		return &now // the pod's directory, where it would be saved, is gone
	}
	if err := s.files.SaveStatus(pod, &now); err != nil {
		s.log.Warn("status not saved", "pod", podsync.KeyOf(pod).String(), "err", err)
	}
	return &now
}

// Probed updates the status of a pod from the last report and the current results of probes,
// since the pod's worker may be busy for long. It returns the pod and its status, or nil if
// there was no report or nothing has changed. The next Report saves the status.
func (s *Store) Probed(uid types.UID) (*v1.Pod, *v1.PodStatus) {
	defer s.lock(uid)()
	e := s.entry(uid)
	if e.pod == nil {
		return nil, nil
	}
	now := s.of(e.pod, e.have, e.status)
	if equality.Semantic.DeepEqual(*e.status, now) {
		return nil, nil
	}
	e.status, e.unsaved = &now, true
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.last[uid]; !ok {
		return nil, nil // forgotten meanwhile
	}
	s.last[uid] = e
	return e.pod, &now
}

func (s *Store) of(pod *v1.Pod, have podsync.Have, old *v1.PodStatus) v1.PodStatus {
	have.Probes = s.probes.Of(pod, have)
	return Of(pod, have, old, Node{Runtime: s.host.RuntimeName(), HostIPs: s.host.IPs()}, time.Now())
}

func (s *Store) lock(uid types.UID) (unlock func()) {
	s.making.LockKey(string(uid))
	return func() { _ = s.making.UnlockKey(string(uid)) }
}

func (s *Store) entry(uid types.UID) entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last[uid]
}

func (s *Store) put(uid types.UID, e entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.loaded, uid)
	s.last[uid] = e
}

// Get returns the last status of a pod, nil if it has none. It is shared and read-only.
func (s *Store) Get(uid types.UID) *v1.PodStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last[uid].status
}

// Last is like Get, but before the first report it returns the saved status.
func (s *Store) Last(pod *v1.Pod) *v1.PodStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.last[pod.UID]; ok {
		return e.status
	}
	if e, ok := s.loaded[pod.UID]; ok {
		return e.status
	}
	e := entry{key: podsync.KeyOf(pod), status: s.files.LoadStatus(pod)}
	s.loaded[pod.UID] = e
	return e.status
}

func (s *Store) Drop(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.last, uid)
	delete(s.loaded, uid)
}

func (s *Store) Forget(key podsync.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, known := range []map[types.UID]entry{s.last, s.loaded} {
		maps.DeleteFunc(known, func(_ types.UID, e entry) bool { return e.key == key })
	}
}
