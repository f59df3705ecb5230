package podfiles

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	v1 "k8s.io/api/core/v1"
)

// Actual returns the resources that were last given to the runtime for each container of a
// pod, by name. The map is shared and read-only.
func (s *Store) Actual(uid string) map[string]v1.ResourceRequirements {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.actual[uid]; ok {
		return known
	}
	known := map[string]v1.ResourceRequirements{}
	if err := atomicfile.ReadJSON(filepath.Join(s.Dir(uid), actualFile), &known); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.o.Log.Warn("resources of a pod not read", "uid", uid, "err", err)
	}
	s.actual[uid] = known
	return known
}

// SetActual records the resources of a container: before its start, and after a resize.
func (s *Store) SetActual(uid, container string, r v1.ResourceRequirements) error {
	all := map[string]v1.ResourceRequirements{}
	maps.Copy(all, s.Actual(uid)) // which is nil if the file has null
	all[container] = *r.DeepCopy()
	if err := atomicfile.WriteJSON(filepath.Join(s.Dir(uid), actualFile), all); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.actual[uid] = all
	return nil
}

// Resizing reports whether a resize of a pod has begun whose sandbox may not have the resources of
// the spec yet.
func (s *Store) Resizing(uid string) bool {
	_, err := os.Lstat(s.resizeFile(uid))
	return err == nil
}

// SetResizing records that a resize begins, or that it has ended.
func (s *Store) SetResizing(uid string, begun bool) error {
	switch {
	case s.Resizing(uid) == begun:
		return nil
	case begun:
		return os.WriteFile(s.resizeFile(uid), nil, 0o600)
	}
	return os.Remove(s.resizeFile(uid))
}

func (s *Store) resizeFile(uid string) string { return filepath.Join(s.Dir(uid), "resizing") }
