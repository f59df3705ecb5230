package podfiles

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// LogDir returns the directory of a pod's logs, with a directory for each container.
func (s *Store) LogDir(pod *v1.Pod) string {
	return s.logDir(pod.Namespace, pod.Name, string(pod.UID))
}

// logDir uses the kubelet's layout, which log shippers know.
func (s *Store) logDir(namespace, name, uid string) string {
	return filepath.Join(s.o.LogDir, namespace+"_"+name+"_"+uid)
}

// Attempts returns, by container, the number of attempts according to the log files. It counts
// only for containers that the runtime does not have: it may have lost them.
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
		for _, log := range logs {
			if n, ok := attemptOf(log.Name()); ok {
				counts[e.Name()] = max(counts[e.Name()], n+1)
			}
		}
	}
	return counts
}

// attemptOf returns the attempt in the name of a log: 3 for 3.log and for the rotated
// 3.log.20261101-120000.gz.
func attemptOf(log string) (attempt uint32, ok bool) {
	number, _, ok := strings.Cut(log, ".log")
	n, err := strconv.ParseUint(number, 10, 32)
	return uint32(n), ok && err == nil
}

// PruneLogs removes the logs of a container of the pod uid, including rotated ones, except those
// of its newest attempts, at most most of them. It is safe to repeat.
func (s *Store) PruneLogs(uid types.UID, container string, most int) error {
	pod := s.Pod(uid)
	if pod == nil {
		return nil
	}
	dir := filepath.Join(s.LogDir(pod), container)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	of := map[uint32][]string{} // by attempt
	for _, e := range entries {
		if n, ok := attemptOf(e.Name()); ok {
			of[n] = append(of[n], e.Name())
		}
	}
	attempts := slices.Sorted(maps.Keys(of))
	for _, n := range attempts[:max(len(attempts)-most, 0)] {
		for _, name := range of[n] {
			if gone := os.Remove(filepath.Join(dir, name)); !errors.Is(gone, fs.ErrNotExist) {
				err = errors.Join(err, gone)
			}
		}
	}
	return err
}
