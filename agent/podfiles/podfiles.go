// Package podfiles keeps the agent's files of pods. It does not know the runtime. Below the
// agent's root there are
//
//	pods/<uid>/pod.json     the pod as it was accepted; written first, removed last
//	pods/<uid>/status.json  its last status, also for the command line
//	pods/<uid>/startup.json the timeline of its start
//	pods/<uid>/ending       exists while the pod is being ended; also for the next agent
//	pods/<uid>/actual.json  the resources last given to the runtime, by container
//	pods/<uid>/userns       the pod's user and group IDs (agent/node)
//	pods/<uid>/resizing     there while the pod's sandbox may not have the resources of its spec
//	pods/<uid>/containers/  the files behind terminationMessagePath
//	pods/<uid>/etc-hosts    mounted at /etc/hosts
//	pods/<uid>/resolv.conf  mounted at /etc/resolv.conf if it follows the node's
//	pods/<uid>/volumes/     and volume-subpaths, plugins: see the package volume
//
// and logs in <logs>/<namespace>_<name>_<uid>/<container>/<attempt>.log. The paths follow
// from the pod, so no record of them is needed.
//
// A pod has one worker, so its files have one writer, except for etc-hosts (hosts.go).
package podfiles

import (
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Options say where the files are.
type Options struct {
	Root     string // the agent's directory, absolute
	LogDir   string // of the pods' logs, absolute
	LogLinks string // directory of links to the containers' logs, for log shippers; "" for none
	Log      *slog.Logger
}

// A Store keeps the files of pods. It is safe for concurrent use, but the files of one pod
// must have one writer.
type Store struct {
	o Options

	mu     sync.Mutex
	pods   map[string]*v1.Pod                            // all pods with files, by UID; guarded by mu
	actual map[string]map[string]v1.ResourceRequirements // by UID and container; guarded by mu
	ending map[string]time.Time                          // when the end of a pod began, by UID; guarded by mu

	seen  sync.Mutex // held while a file is written that containers see
	names Names      // in the hosts files; nil before Rename; guarded by seen
}

// Open returns a Store with the files that an earlier agent has left below o.Root.
func Open(o Options) (*Store, error) {
	s := &Store{o: o, pods: map[string]*v1.Pod{}, actual: map[string]map[string]v1.ResourceRequirements{}, ending: map[string]time.Time{}}
	return s, s.find()
}

func (s *Store) dir() string { return filepath.Join(s.o.Root, "pods") }

// Dir returns the directory of a pod's files.
func (s *Store) Dir(uid string) string { return filepath.Join(s.dir(), uid) }

// The files of a pod, in its directory.
const (
	podFile     = "pod.json"
	statusFile  = "status.json"
	startupFile = "startup.json"
	actualFile  = "actual.json"
	endingFile  = "ending" // modified when the pod's end began
)

// MakeLogDir makes the directory of a pod's logs.
func (s *Store) MakeLogDir(pod *v1.Pod) error { return os.MkdirAll(s.LogDir(pod), 0o755) }

// Remove removes the files and logs of a pod that no longer runs.
func (s *Store) Remove(uid types.UID) error {
	pod := s.Pod(uid)
	if pod == nil {
		return nil
	}
	if err := os.RemoveAll(s.LogDir(pod)); err != nil {
		return err
	}
	if err := s.removeDir(string(uid)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, string(uid))
	delete(s.actual, string(uid))
	delete(s.ending, string(uid))
	return nil
}
