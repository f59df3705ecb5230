package podfiles

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/atomicfile"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// find finds the pods that have files. It ignores a directory without a readable pod.json:
// another version may have written it, the disk may have failed, or it is a kubelet's. It
// removes only empty ones, which interruptions of this package leave behind.
func (s *Store) find() error {
	entries, err := os.ReadDir(s.dir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		pod, err := s.readPod(e.Name())
		switch {
		case err == nil:
			s.pods[e.Name()] = pod
			if info, err := os.Lstat(filepath.Join(s.Dir(e.Name()), endingFile)); err == nil {
				s.ending[e.Name()] = info.ModTime()
			}
		case errors.Is(err, fs.ErrNotExist) && s.removeEmpty(e.Name()) == nil:
		default:
			s.o.Log.Error("files of an unknown pod stay", "uid", e.Name(), "err", err)
		}
	}
	return nil
}

// removeEmpty removes the directory of a pod whose creation or removal was interrupted. It fails
// if the directory has more than an unfinished pod.json.
func (s *Store) removeEmpty(uid string) error {
	unfinished, err := filepath.Glob(filepath.Join(s.Dir(uid), "."+podFile+".*.tmp"))
	if err != nil {
		return err
	}
	for _, path := range unfinished {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return os.Remove(s.Dir(uid))
}

func (s *Store) readPod(uid string) (*v1.Pod, error) {
	pod := &v1.Pod{}
	if err := atomicfile.ReadJSON(filepath.Join(s.Dir(uid), podFile), pod); err != nil {
		return nil, fmt.Errorf("%s: %w", podFile, err)
	}
	if string(pod.UID) != uid || pod.Name == "" || pod.Namespace == "" {
		return nil, errors.New(podFile + ": is of another pod")
	}
	return pod, nil
}

// Accepted returns the pods that have files, as accepted or last changed, ordered by UID.
func (s *Store) Accepted() []*v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.pods), func(a, b *v1.Pod) int { return cmp.Compare(a.UID, b.UID) })
}

// Of returns the UIDs of the pods with this key that have files, sorted.
func (s *Store) Of(key podsync.Key) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var uids []string
	for uid, pod := range s.pods {
		if podsync.KeyOf(pod) == key {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return uids
}

// Last returns the pod with this key that has files and whose end has not begun; nil if there is
// none, or if there are several.
func (s *Store) Last(key podsync.Key) *v1.Pod {
	var last *v1.Pod
	for _, uid := range s.Of(key) {
		pod := s.Pod(types.UID(uid))
		switch {
		case pod == nil || s.Ending(pod.UID):
		case last != nil:
			return nil
		default:
			last = pod
		}
	}
	return last
}

// Accept records a pod in pod.json, durably, unless this version of it is recorded already.
func (s *Store) Accept(pod *v1.Pod) error {
	uid := string(pod.UID)
	old := s.Pod(pod.UID)
	if old == pod {
		return nil
	}
	dir := s.Dir(uid)
	makeDirs := os.MkdirAll
	if old == nil {
		makeDirs = atomicfile.MakeDirs
	}
	if err := makeDirs(dir, 0o750); err != nil {
		return err
	}
	if err := atomicfile.SaveJSON(filepath.Join(dir, podFile), pod); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods[uid] = pod
	return nil
}

// removeDir removes the pod's directory, pod.json last.
func (s *Store) removeDir(uid string) error {
	dir := s.Dir(uid)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if e.Name() == podFile {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

// Pod returns the pod of this UID as accepted or last changed, nil if it has no files.
func (s *Store) Pod(uid types.UID) *v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[string(uid)]
}

// Change records a pod that has changed in place. A pod without files is recorded when it
// gets some.
func (s *Store) Change(pod *v1.Pod) error {
	if s.Pod(pod.UID) == nil {
		return nil
	}
	return s.Accept(pod)
}
