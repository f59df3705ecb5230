package podfiles

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
)

// LogDir is the directory of a pod's logs, with a directory for each container.
func (s *Store) LogDir(pod *v1.Pod) string {
	return s.logDir(pod.Namespace, pod.Name, string(pod.UID))
}

// logDir has the kubelet's layout, which log shippers know.
func (s *Store) logDir(namespace, name, uid string) string {
	return filepath.Join(s.o.LogDir, namespace+"_"+name+"_"+uid)
}

// Attempts returns, by container, the number of attempts according to the logs that they left.
// It counts only for containers that the runtime does not have, since it may have lost them.
func (s *Store) Attempts(pod *v1.Pod, have podsync.Have) map[string]uint32 {
	counts := map[string]uint32{}
	dir := s.LogDir(pod)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return counts
	}
	for _, e := range entries {
		if _, ok := have.Newest(string(pod.UID), e.Name()); ok {
			continue
		}
		logs, err := os.ReadDir(filepath.Join(dir, e.Name()))
		if err != nil {
			continue
		}
		for _, log := range logs { // 3.log, or rotated: 3.log.20261101-120000.gz
			number, _, ok := strings.Cut(log.Name(), ".log")
			if n, err := strconv.ParseUint(number, 10, 32); ok && err == nil {
				counts[e.Name()] = max(counts[e.Name()], uint32(n)+1)
			}
		}
	}
	return counts
}
