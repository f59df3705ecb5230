package status

import (
	"testing"

	"github.com/crisp-cri/crisp/agent/podsync"
)

// A lock lasts as long as it is used: Forget does not take it from its holder, and nothing is
// left of it afterwards.
func TestLocksEnd(t *testing.T) {
	s := NewStore(nil, nil, nil, nil)
	key := podsync.Key{Name: "p"}
	unlock := s.lock("u")
	s.put("u", entry{key: key})
	s.Forget(key)
	if l := s.locks["u"]; l == nil || l.TryLock() {
		t.Error("a lock was taken from its holder")
	}
	unlock()
	s.Drop("u")
	if len(s.locks) > 0 {
		t.Errorf("%d locks are left", len(s.locks))
	}
}
