package store

import (
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Delete deletes an object; of a pod it begins the end. grace, in seconds, is the
// pod's own if nil; a second Delete can only make it shorter. With force it is 0,
// and a second time the pod's object goes at once, whatever is left of the pod. Of one
// that is Rejected it returns nil.
func (s *Store) Delete(key string, uid types.UID, grace *int64, force bool) (manifest.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.records[key]
	if !ok {
		return nil, fault.NotFound.Errorf("there is no %s", key)
	}
	if uid != "" && uid != old.UID {
		return nil, fault.WrongState.Errorf("%s is another one by now", key)
	}
	pod, isPod := old.decoded.(*v1.Pod)
	if !isPod || force && old.Grace != nil && *old.Grace == 0 {
		return old.decoded, s.removeLocked(old)
	}
	seconds := *pod.Spec.TerminationGracePeriodSeconds
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
	r.Deleted = &metav1.Time{Time: time.Now().Add(time.Duration(seconds) * time.Second).Truncate(time.Second)}
	r.decoded = pod.DeepCopy()
	s.stamp(&r)
	return r.decoded, s.saveLocked(&r)
}

// Ended removes a pod that was being deleted: nothing of it is left.
func (s *Store) Ended(namespace, name string, uid types.UID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records["pod "+namespace+"/"+name]
	if !ok || r.UID != uid || r.Deleted == nil {
		return nil
	}
	return s.removeLocked(r)
}
