package podfiles

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/regular"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
