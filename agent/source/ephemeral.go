package source

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/fault"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// An EphemeralStore keeps the ephemeral containers that were added to running pods (kubectl debug), so
// that they outlive the agent. Manifests cannot have any. They go with the pod that they were added
// to. A later pod from a file with the same content has the same UID, but must not start with another
// user's shell.
//
// It has the ephemeral containers of all pods: for each pod that has any, a file UID.json
// with a JSON list.
type EphemeralStore struct {
	dir    string
	wanted *Manager
	log    *slog.Logger

	mu   sync.Mutex
	pods map[types.UID]bool // those that have a file; guarded by mu, as the files are
}

// OpenEphemeral passes the ephemeral containers of the accepted pods to wanted, and removes the files of
// other pods. A file that cannot be read stays, and is only logged: its containers keep running, but
// are not shown.
func OpenEphemeral(dir string, accepted []*v1.Pod, wanted *Manager, log *slog.Logger) *EphemeralStore {
	s := &EphemeralStore{dir: dir, wanted: wanted, log: log, pods: map[types.UID]bool{}}
	warn := func(path string, err error) {
		s.log.Warn("ephemeral containers of a pod not known", "path", path, "err", err)
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		warn(s.dir, err)
	}
	there := map[string]bool{}
	for _, pod := range accepted {
		there[string(pod.UID)] = true
	}
	for _, e := range entries {
		path := filepath.Join(s.dir, e.Name())
		uid := strings.TrimSuffix(e.Name(), ".json")
		if !there[uid] {
			if err := os.Remove(path); err != nil {
				warn(path, err)
			}
			continue
		}
		s.pods[types.UID(uid)] = true
		var list []v1.EphemeralContainer
		if err := atomicfile.ReadJSON(path, &list); err != nil {
			warn(path, err)
			continue
		}
		s.wanted.SetEphemeral(types.UID(uid), list)
	}
	return s
}

// Set sets the ephemeral containers of a pod, for as long as the pod exists. Invalid ones are a
// fault.Invalid.
func (s *EphemeralStore) Set(pod *v1.Pod, containers []v1.EphemeralContainer) error {
	list, err := manifest.Ephemeral(pod, containers)
	if err != nil {
		return fault.Invalid.Errorf("%v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := atomicfile.MakeDirs(s.dir, 0o700); err != nil {
		return err
	}
	if err := atomicfile.SaveJSON(s.path(pod.UID), list); err != nil {
		return err
	}
	s.pods[pod.UID] = true
	s.wanted.SetEphemeral(pod.UID, list)
	return nil
}

// Keep removes the files of all pods but these, by UID: the others are gone.
func (s *EphemeralStore) Keep(pods map[types.UID]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid := range s.pods {
		if pods[uid] {
			continue
		}
		if err := os.Remove(s.path(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("file of a removed pod's ephemeral containers not removed", "path", s.path(uid), "err", err)
		}
		delete(s.pods, uid) // the next agent removes the files that could not be removed
	}
}

func (s *EphemeralStore) path(uid types.UID) string { return filepath.Join(s.dir, string(uid)+".json") }
