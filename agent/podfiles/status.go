package podfiles

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/regular"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// LoadStatus returns the saved status of a pod, nil without one. It also returns nil for a pod that
// is being ended: if the pod is wanted again it starts over.
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

// Kept reads a pod's last status from its directory, nil if it cannot be read, and when its end
// began, nil if it has not.
func Kept(dir string) (status *v1.PodStatus, ending *metav1.Time) {
	if info, err := os.Stat(filepath.Join(dir, endingFile)); err == nil {
		ending = &metav1.Time{Time: info.ModTime()}
	}
	data, err := readKept(filepath.Join(dir, statusFile))
	if err == nil {
		err = json.Unmarshal(data, &status)
	}
	if err != nil {
		return nil, ending
	}
	return status, ending
}

// maxStatus is the maximum size of a status file in bytes, more than any pod's status needs.
const maxStatus = 4 << 20

// readKept reads a file of the agent. On the pods of a kubelet any user can set the annotation
// that has the path. So readKept opens only a regular file that root or this user owns, and
// reads no more than maxStatus bytes.
func readKept(path string) ([]byte, error) {
	f, err := regular.OpenNoLink(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return nil, fault.Invalid.Errorf("%s is not a file of the agent", path)
	}
	return regular.ReadAll(f, maxStatus)
}
