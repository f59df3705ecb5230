package podfiles

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/atomicfile"
	v1 "k8s.io/api/core/v1"
)

// SaveStatus keeps the status of a pod for the next agent, and for the command line while
// no agent runs.
func (s *Store) SaveStatus(pod *v1.Pod, status *v1.PodStatus) error {
	// A pod that never ran may also have a status: that it was rejected.
	if err := s.Accept(pod); err != nil {
		return err
	}
	return atomicfile.WriteJSON(s.statusPath(pod), status)
}

func (s *Store) statusPath(pod *v1.Pod) string {
	return filepath.Join(s.Dir(string(pod.UID)), statusFile)
}

// StartupPath returns the path of the file with the timeline of the pod's start.
func (s *Store) StartupPath(pod *v1.Pod) string {
	return filepath.Join(s.Dir(string(pod.UID)), startupFile)
}

// DropStatus removes the saved status of a pod.
func (s *Store) DropStatus(pod *v1.Pod) error {
	err := os.Remove(s.statusPath(pod))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// LoadStatus returns the saved status of a pod, nil if there is none. It also returns nil for a
// pod that is being ended: if the pod is wanted again it starts over.
func (s *Store) LoadStatus(pod *v1.Pod) *v1.PodStatus {
	if s.Ending(pod.UID) {
		return nil
	}
	var status *v1.PodStatus // nil for null, too
	switch err := atomicfile.ReadJSON(s.statusPath(pod), &status); {
	case err == nil:
		return status
	case !errors.Is(err, fs.ErrNotExist):
		s.o.Log.Warn("status of a pod not read", "pod", podsync.KeyOf(pod).String(), "err", err)
	}
	return nil
}
