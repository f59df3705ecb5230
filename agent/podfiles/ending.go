package podfiles

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// MarkEnding records that the pods with files in have are being ended, except pod, the wanted
// one, which may be nil. The next agent and the command line also see the record. It returns the
// UIDs of all pods in have whose end has begun.
func (s *Store) MarkEnding(pod *v1.Pod, have podsync.Have) []string {
	for _, uid := range have.Files {
		if pod != nil && string(pod.UID) == uid || s.Ending(types.UID(uid)) {
			continue
		}
		f, err := os.OpenFile(filepath.Join(s.Dir(uid), endingFile), os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			err = f.Close()
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // its files may just have been removed
			s.o.Log.Warn("end of a pod not recorded", "uid", uid, "err", err)
		}
		s.mu.Lock()
		if s.pods[uid] != nil {
			s.ending[uid] = time.Now()
		}
		s.mu.Unlock()
	}
	return s.EndingOf(have.Files)
}

// Ending reports whether a pod is being ended because it was no longer wanted.
func (s *Store) Ending(uid types.UID) bool {
	return !s.EndingSince(uid).IsZero()
}

// EndingSince returns when the end of a pod was recorded, the zero time if it was not.
func (s *Store) EndingSince(uid types.UID) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending[string(uid)]
}

// EndingOf returns the UIDs, among these, of pods whose end has begun.
func (s *Store) EndingOf(uids []string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(uids), func(uid string) bool { return s.ending[uid].IsZero() })
}
