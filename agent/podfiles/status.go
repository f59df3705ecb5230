package podfiles

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/atomicfile"
	v1 "k8s.io/api/core/v1"
)

// SaveStatus keeps the status of a pod: for the next agent, and for a command
// line that finds none running.
func (s *Store) SaveStatus(pod *v1.Pod, status *v1.PodStatus) error {
	// A pod that has not begun has a status too: it may have been rejected.
	if err := s.Accept(pod); err != nil {
		return err
	}
	return atomicfile.WriteJSON(filepath.Join(s.Dir(string(pod.UID)), "status.json"), status)
}

// DropStatus has the status of a pod forgotten.
func (s *Store) DropStatus(pod *v1.Pod) error {
	err := os.Remove(filepath.Join(s.Dir(string(pod.UID)), "status.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// LoadStatus returns the status that was saved last, nil if there is none. What is being
// ended has none: it may be wanted again, and then begins anew.
func (s *Store) LoadStatus(pod *v1.Pod) *v1.PodStatus {
	if s.Ending(pod.UID) {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(s.Dir(string(pod.UID)), "status.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var status v1.PodStatus
	if err == nil {
		err = json.Unmarshal(data, &status)
	}
	if err != nil {
		s.o.Log.Warn("status of a pod not known", "pod", podsync.KeyOf(pod).String(), "err", err)
		return nil
	}
	return &status
}
