package store

import (
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Delete deletes an object and returns it, or nil if it is Rejected. For a pod it only begins the
// deletion, which Ended completes. grace is in seconds; nil means the pod's own grace period, and a
// later Delete can only shorten it. With force the grace period is 0, and a second such Delete
// removes the pod's object at once, even if containers remain.
//
// The error is fault.NotFound if there is no object of this key, and fault.WrongState if uid is
// neither "" nor the object's UID.
func (s *Store) Delete(key string, uid types.UID, grace *int64, force bool) (manifest.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.records[key]
	if !ok {
		return nil, fault.NotFound.Errorf("there is no %s", key)
	}
	if uid != "" && uid != old.UID {
		return nil, fault.WrongState.Errorf("%s has another UID by now", key)
	}
	pod, isPod := old.decoded.(*v1.Pod)
	if !isPod || force && old.Grace != nil && *old.Grace == 0 {
		return old.decoded, s.removeLocked(old)
	}
	seconds := ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, v1.DefaultTerminationGracePeriodSeconds)
	if grace != nil {
		seconds = max(*grace, 0)
	}
	if force {
		seconds = 0
	}
	if old.Grace != nil && *old.Grace <= seconds {
		return old.decoded, nil
	}
	s.version++
	r := *old
	r.Version, r.Grace = s.version, &seconds
	r.Deleted = &metav1.Time{Time: time.Now().Add(podsync.Seconds(seconds)).Truncate(time.Second)}
	r.decoded = pod.DeepCopy()
	s.stamp(&r)
	return r.decoded, s.saveLocked(&r)
}

// Ended removes the object of a deleted pod once the pod has ended.
func (s *Store) Ended(namespace, name string, uid types.UID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records["pod "+namespace+"/"+name]
	if !ok || r.UID != uid || r.Deleted == nil {
		return nil
	}
	return s.removeLocked(r)
}
