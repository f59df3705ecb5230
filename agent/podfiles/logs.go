package podfiles

import (
	"errors"
	"fmt"
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

// LogDir returns the directory of a pod's logs, with a directory for each container. The layout is
// the kubelet's, which log shippers know.
func (s *Store) LogDir(pod *v1.Pod) string {
	return filepath.Join(s.o.LogDir, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
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

// linkName is the maximum length of a link's name without ".log", in bytes: the kernel
// allows 255.
const linkName = 251

// logLink returns the path at which log shippers look for the log of a container.
func (s *Store) logLink(pod *v1.Pod, container, id string) string {
	name := fmt.Sprintf("%s_%s_%s-%s", pod.Name, pod.Namespace, container, id)
	return filepath.Join(s.o.LogLinks, name[:min(len(name), linkName)]+".log")
}

// LinkLog makes the link to the log of a container, if the log exists.
func (s *Store) LinkLog(pod *v1.Pod, container, id, log string) error {
	if s.o.LogLinks == "" {
		return nil
	}
	if _, err := os.Stat(log); err != nil {
		return nil // there is no log
	}
	if err := os.MkdirAll(s.o.LogLinks, 0o755); err != nil {
		return err
	}
	link := s.logLink(pod, container, id)
	if err := os.Symlink(log, link); err != nil && !os.IsExist(err) {
		return err
	}
	return nil
}

// UnlinkLog removes the link to the log of a container. Its pod need not be known.
func (s *Store) UnlinkLog(id string) error {
	if s.o.LogLinks == "" {
		return nil
	}
	links, err := filepath.Glob(filepath.Join(s.o.LogLinks, "*-"+id+".log"))
	if err != nil {
		return err
	}
	for _, link := range links {
		if err := os.Remove(link); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}
